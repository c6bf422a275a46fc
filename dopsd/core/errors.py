"""The error type that ends a command with one line for its user."""

from __future__ import annotations

from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING

from dopsd.core.error_codes import Code

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# EX_TEMPFAIL of sysexits.h: a network or a disk failed; the same command may succeed later
TEMPORARY = 75
WIDEST = 800  # characters of a line: a message may quote a value as long as a file


class StopRequested(Exception):
    """Signal that training must save and stop before its next forward.

    Attributes:
        is_agreed: True if every process of the run raises it at the same point; otherwise the other
            processes must still be notified.
    """

    def __init__(self, is_agreed: bool) -> None:
        super().__init__("stop requested")
        self.is_agreed = is_agreed


class DopsdError(Exception):
    """An error that the user can fix, reported without a traceback.

    The message names the key, file or row, what was expected and what to do. It has one line or
    several.

    Attributes:
        exit_code: exit status of the command: 2, unless a signal or a temporary failure has its
            own.
        code: the stable code that `dopsd explain` and docs/errors.md explain; that of plug-ins
            where an error has none of its own.
    """

    def __init__(
        self, message: str | list[str], exit_code: int = 2, *, code: Code = Code.PLUGIN
    ) -> None:
        self.lines = [message] if isinstance(message, str) else message
        super().__init__("\n".join(map(readable, self.lines)))
        self.exit_code, self.code = exit_code, code

    def __reduce__(self) -> tuple[Callable[[], DopsdError], tuple[()]]:
        """Return how to copy or unpickle the error; processes of a run send it to each other."""
        return partial(DopsdError, self.lines, self.exit_code, code=self.code), ()

    @property
    def coded(self) -> str:
        """The message with the code at the end of its first line."""
        return with_code(str(self), self.code)


def with_code(message: str, code: Code) -> str:
    """Return a message with the code at the end of its first line."""
    first, *others = message.split("\n")
    return "\n".join([f"{first} ({code.value})", *others])


def readable(line: str) -> str:
    """Return the line as a terminal can show it.

    Control characters and line breaks are escaped; the middle of a line over WIDEST characters is
    cut.
    """
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
    return line if len(line) <= WIDEST else f"{line[: WIDEST // 2]} ... {line[-WIDEST // 2 :]}"


def unknown(subject: str, known: Iterable[object], shown: str = "") -> str:
    """Return the line that refuses an unknown name, lists those that exist, and a similar one.

    Args:
        subject: where the name was found, and the name itself, such as `--task chess`.
        known: the names that exist, in the order in which they are shown.
        shown: what the line lists in place of many names; empty: all names.
    """
    names = [str(name) for name in known]
    similar = get_close_matches(subject.split(" ")[-1][:80], names, 1)
    hint = f"; did you mean {similar[0]}?" if similar else ""
    return f"{subject}: unknown; there is {shown or ', '.join(names)}{hint}"


def is_unicode(text: str) -> bool:
    """Return whether UTF-8 can encode the text.

    JSON, YAML and the command line can bring lone surrogates, which it cannot.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
