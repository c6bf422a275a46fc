"""Report a failing Hugging Face hub in one line."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from dopsd.core.error_codes import Code
from dopsd.core.errors import TEMPORARY, DopsdError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from huggingface_hub.errors import HfHubHTTPError

WIDEST = 200  # characters of the hub's own message
REASONS = {  # status of the hub's answer: what to do
    400: "the hub refuses the request",
    401: "the hub does not know the token; set HF_TOKEN, or run `hf auth login`",
    402: "the account's plan does not allow this upload",
    403: "the token may not write there; make one with write access at"
    " https://huggingface.co/settings/tokens",
    404: "no such repository or branch, or the token may not see it",
    413: "a file is too large, or the account's storage is full",
}
READING = {  # the same for a command that only reads
    401: "the hub does not know the token; set HF_TOKEN, or run `hf auth login`",
    403: "it asks for consent; accept its terms on its page, and set HF_TOKEN",
    404: "no folder and no repository of this name, or the token may not see it",
}
MEANWHILE = (409, 412)  # another commit came between
LATER = (408, 429)  # and every status from 500 on


@contextmanager
def one_line(repo: str, endpoint: str, command: str = "push") -> Iterator[None]:
    """Turn errors of the hub's client in this context into one line.

    Args:
        repo: the repository, for messages.
        endpoint: the hub's address, for messages.
        command: `push`, or a command that only reads.

    Raises:
        DopsdError: with exit code 75 if the same command may succeed later, else 2.
    """
    try:
        yield
    except DopsdError:
        raise
    # the client raises its HTTP library's errors, its own, and RuntimeError around both
    except Exception as error:
        explained = _explained(error, f"{command}: {repo}", endpoint)
        if explained is None:
            raise
        raise explained from error


def _explained(error: Exception, where: str, endpoint: str) -> DopsdError | None:
    from huggingface_hub import constants
    from huggingface_hub.errors import HfHubHTTPError

    causes = list(_causes(error))
    for cause in causes:
        if isinstance(cause, HfHubHTTPError):
            return _refused(cause, where)
    # the base class of all errors of the client's HTTP library, and OSError
    if any(isinstance(cause, HfHubHTTPError.__bases__) for cause in causes):
        return DopsdError(
            f"{where}: no answer from {endpoint} ({_short(error)}). "
            + ("Unset HF_HUB_OFFLINE" if constants.HF_HUB_OFFLINE else "Run the same command later")
            + ("; files that arrived are not sent again" if _is_push(where) else ""),
            TEMPORARY,
            code=Code.TEMPORARY,
        )
    if isinstance(error, ValueError):  # the client's words for an answer that it cannot use
        return _permanent(f"{where}: {_short(error)}")
    return None


def _is_push(where: str) -> bool:
    return where.startswith("push: ")


def _permanent(line: str) -> DopsdError:
    if _is_push(line):
        return DopsdError(f"{line}; nothing was published", code=Code.PUSH_REFUSED)
    return DopsdError(line, code=Code.NO_MODEL)


def _refused(error: HfHubHTTPError, where: str) -> DopsdError:
    status = error.response.status_code
    said = f" ({_short(error.server_message)})" if error.server_message else ""
    if status in MEANWHILE:
        reason = "another commit came between; run the same command again"
    elif status in LATER or status not in REASONS:
        reason = "the hub cannot answer now; run the same command later"
    else:
        reasons = REASONS if _is_push(where) else REASONS | READING
        return _permanent(f"{where}: {status}{said}: {reasons[status]}")
    return DopsdError(f"{where}: {status}{said}: {reason}", TEMPORARY, code=Code.TEMPORARY)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _short(message: object) -> str:
    return " ".join(str(message).split())[:WIDEST]
