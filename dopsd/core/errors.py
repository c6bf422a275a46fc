"""The one error that ends a command with a single line for its user."""

from __future__ import annotations

# EX_TEMPFAIL of sysexits.h: a network or a disk failed, and the same command may do better later
TEMPORARY = 75
WIDEST = 800  # characters of a line: what was found instead may be a whole file


class StopRequested(Exception):
    """Training must stop before its next forward, and save.

    `is_agreed`: every process of the run raises it at the same point; otherwise the others still
    have to be told.
    """

    def __init__(self, is_agreed: bool) -> None:
        super().__init__("stop requested")
        self.is_agreed = is_agreed


class DopsdError(Exception):
    """Something the user can mend: names the key, file or row, what was expected and what to do; a
    line, or several.

    `exit_code` is the status of the command that meets it: 2, unless a signal or a fault has its
    own.
    """

    def __init__(self, message: str | list[str], exit_code: int = 2) -> None:
        super().__init__(
            "\n".join(map(readable, [message] if isinstance(message, str) else message))
        )
        self.exit_code = exit_code


def readable(line: str) -> str:
    """The line as a terminal can show it: control characters and line breaks escaped, its middle
    cut where it is long.
    """
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
    return line if len(line) <= WIDEST else f"{line[: WIDEST // 2]} ... {line[-WIDEST // 2 :]}"


def is_unicode(text: str) -> bool:
    """Whether UTF-8 can hold it: JSON, YAML and the command line can bring halves of characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
