"""Repositories of the Hugging Face hub: upload a model in one commit, look into a base.

The token comes from HF_TOKEN or from `hf auth login`, never from an argument. HF_ENDPOINT names
another hub.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from dopsd.core.errors import TEMPORARY, Code, DopsdError
from dopsd.core.progress import log

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.hf_api import ModelInfo
    from huggingface_hub.utils import (  # type: ignore[attr-defined]  # lacks __all__
        SafetensorsFileMetadata,
    )

    Operation = CommitOperationAdd | CommitOperationDelete

SUFFIXES = (".safetensors", ".json", ".md", ".html", ".txt")  # nothing that runs code
LOGIN = "set HF_TOKEN, or run `hf auth login`"
MAIN = "main"
# weights of merged models, whose number of shards may change from one push to the next
SHARDS = re.compile(r"model(-\d+-of-\d+)?\.safetensors(\.index\.json)?")


@dataclass(frozen=True)
class Upload:
    """What goes where."""

    repo: str  # the repository, `user/name`
    files: dict[str, Path | bytes]  # file on disk or content, by name in the repository
    marker: str  # name of the file that every upload of this kind has
    other_marker: str  # name of the file that only uploads of the other kind have
    is_private: bool = True  # who may see the repository, if the upload creates it
    revision: str = MAIN  # branch; the upload creates it if it is missing
    message: str = ""  # commit message

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of each file, by name."""
        return {
            name: len(source) if isinstance(source, bytes) else source.stat().st_size
            for name, source in sorted(self.files.items())
        }


def check_names(repo: str, revision: str) -> None:
    """Refuse names that the hub does not take."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # lacks __all__

    try:
        validate_repo_id(repo)
        is_valid = repo.count("/") == 1
    except HFValidationError:
        is_valid = False
    if not is_valid:
        raise Code.ARGUMENT.error(
            f"push: {repo}: expected user/name or organization/name, of letters, digits, single"
            " dashes and dots, and _; no .git at the end"
        )
    if not re.fullmatch(r"[\w][\w.-]*(/[\w][\w.-]*)*", revision):
        raise Code.ARGUMENT.error(f"push: --revision {revision}: expected the name of a branch")


def check_files(upload: Upload) -> None:
    """Refuse files that could run code."""
    if refused := [name for name in upload.files if PurePosixPath(name).suffix not in SUFFIXES]:
        raise Code.PUSH_REFUSED.error(
            f"push: {refused[0]}: only {', '.join(SUFFIXES)} files are uploaded; move it away"
        )


def require_token() -> None:
    """Refuse to go on without a token of the hub."""
    from huggingface_hub import get_token

    if get_token() is None:
        raise Code.PUSH_REFUSED.error(f"push: no token of the Hugging Face hub; {LOGIN}")


def upload(new: Upload) -> str | None:
    """Upload the files in one commit, and return its address; None if nothing is new.

    Files that the hub has are not sent again, so a repeated push sends what is missing.
    """
    from huggingface_hub import HfApi

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # "no files have been modified"
    require_token()
    api = HfApi()
    with _one_line(new.repo, api.endpoint):
        api.create_repo(new.repo, private=new.is_private, exist_ok=True)
        head = _branch(api, new)
        commit = api.create_commit(
            new.repo,
            _operations(new, head),
            commit_message=new.message,
            revision=new.revision,
            parent_commit=head.sha,
        )
    return None if commit.oid == head.sha else str(commit.commit_url)


def _branch(api: HfApi, upload: Upload) -> ModelInfo:
    """Return the head of the upload's branch, which is created if nothing speaks against it."""
    from huggingface_hub.errors import RevisionNotFoundError

    try:
        head = api.model_info(upload.repo, revision=upload.revision)
    except RevisionNotFoundError:
        _require_fitting(upload, api.model_info(upload.repo))  # a new branch begins there
        api.create_branch(upload.repo, branch=upload.revision, exist_ok=True)
        head = api.model_info(upload.repo, revision=upload.revision)
    _require_fitting(upload, head)
    return head


def _require_fitting(upload: Upload, head: ModelInfo) -> None:
    """Refuse a repository that more people see, or that holds the other kind of model."""
    if upload.is_private and not head.private:
        raise Code.PUSH_REFUSED.error(
            f"push: {upload.repo} is public; give --public to push there, or name another one"
        )
    names = _names(head)
    if upload.other_marker in names and upload.marker not in names:
        raise Code.PUSH_REFUSED.error(
            f"push: {upload.repo} holds {upload.other_marker}, so it is another kind of model;"
            " name another repository"
        )


def _names(head: ModelInfo) -> set[str]:
    return {file.rfilename for file in head.siblings or []}


def _operations(upload: Upload, head: ModelInfo) -> list[Operation]:
    """Return the commit's operations: every file, and the removal of replaced shards."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    obsolete = sorted(n for n in _names(head) - upload.files.keys() if SHARDS.fullmatch(n))
    if obsolete:
        log(f"push: removing replaced weights: {', '.join(obsolete)}")
    additions = [CommitOperationAdd(name, source) for name, source in sorted(upload.files.items())]
    return [*additions, *(CommitOperationDelete(name) for name in obsolete)]


WIDEST = 200  # characters of the hub's own message
REASONS = {  # status of the hub's answer: what to do
    400: "the hub refuses the request",
    401: f"the hub does not know the token; {LOGIN}",
    402: "the account's plan does not allow this upload",
    403: "the token may not write there; make one with write access at"
    " https://huggingface.co/settings/tokens",
    404: "no such repository or branch, or the token may not see it",
    413: "a file is too large, or the account's storage is full",
}
READING = {  # where it differs for a command that only reads
    403: "it asks for consent; accept its terms on its page, and set HF_TOKEN",
    404: "no folder and no repository of this name, or the token may not see it",
}
MEANWHILE = (409, 412)  # another commit came between
LATER = (408, 429)  # and every status from 500 on


@contextmanager
def _one_line(repo: str, endpoint: str, command: str = "push") -> Iterator[None]:
    """Turn errors of the hub's client in this context into one line.

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
        return Code.TEMPORARY.error(
            f"{where}: no answer from {endpoint} ({_short(error)}). "
            + ("Unset HF_HUB_OFFLINE" if constants.HF_HUB_OFFLINE else "Run the same command later")
            + ("; files that arrived are not sent again" if _is_push(where) else ""),
            TEMPORARY,
        )
    if isinstance(error, ValueError):  # the client's words for an answer that it cannot use
        return _permanent(f"{where}: {_short(error)}")
    return None


def _is_push(where: str) -> bool:
    return where.startswith("push: ")


def _permanent(line: str) -> DopsdError:
    if _is_push(line):
        return Code.PUSH_REFUSED.error(f"{line}; nothing was published")
    return Code.NO_MODEL.error(line)


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
    return Code.TEMPORARY.error(f"{where}: {status}{said}: {reason}", TEMPORARY)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _short(message: object) -> str:
    return " ".join(str(message).split())[:WIDEST]


NAME = re.compile(r"[\w-][\w.-]*/[\w.-]*\w")  # organization/name
SMALL = 32 * 2**20  # bytes of the largest file that is downloaded whole
READ = (".json", ".txt", ".jinja", ".model")  # config, tokenizer, index
GIGA = 1e9


def is_name(text: str) -> bool:
    """Return whether a text can be the name of a repository."""
    return NAME.fullmatch(text) is not None


def fetch_small_files(name: str, folder: Path) -> list[str]:
    """Download the small files of a base, and the headers of its weight files.

    A weight file in the folder has its header and its length, but no content: it takes no space.

    Args:
        folder: an empty folder.

    Returns:
        Lines about the repository: size of the download, licence.
    """
    from huggingface_hub import HfApi

    api = HfApi()
    with _one_line(name, api.endpoint, "inspect"):
        info = api.model_info(name, files_metadata=True)
        for file, size in _sizes(info).items():
            suffix = PurePosixPath(file).suffix
            if "/" in file:
                continue
            if suffix == ".safetensors":
                header = api.parse_safetensors_file_metadata(name, file, revision=info.sha)
                _write_header(folder / file, header)
            elif suffix in READ and size <= SMALL:
                api.hf_hub_download(name, file, revision=info.sha, local_dir=folder)
            elif suffix == ".bin":
                (folder / file).touch()  # named in the error that refuses it
    return _about(info)


def _sizes(info: ModelInfo) -> dict[str, int]:
    return {file.rfilename: file.size or 0 for file in info.siblings or []}


def _about(info: ModelInfo) -> list[str]:
    weights = {name: size for name, size in _sizes(info).items() if name.endswith(".safetensors")}
    licence = info.card_data.get("license") if info.card_data else None
    return [
        f"download: {sum(weights.values()) / GIGA:.3g} GB of weights, revision {info.sha}",
        f"licence: {licence or 'its card names none'}",
    ]


def _write_header(path: Path, header: SafetensorsFileMetadata) -> None:
    """Write a safetensors file of full length whose content is a hole."""
    tensors = {
        name: {"dtype": t.dtype, "shape": t.shape, "data_offsets": t.data_offsets}
        for name, t in header.tensors.items()
    }
    text = json.dumps(tensors).encode()
    end = max((t.data_offsets[1] for t in header.tensors.values()), default=0)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
