"""The error that ends a command with one line for its user, and the stable codes of all messages.

`dopsd explain D103` prints what to do about a code. A code that was released keeps its number, its
name and its meaning: never reuse or renumber one. A new code takes the next free number of its
group. dopsd/cli/explanations.yaml has the text of each.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from enum import Enum, unique
from functools import partial

# EX_TEMPFAIL of sysexits.h: a network or a disk failed; the same command may succeed later
TEMPORARY = 75
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # a disk without space, as opposed to no reader
MISTAKES = (
    FileNotFoundError,
    FileExistsError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
)
WIDEST = 800  # characters of a line: a message may quote a value as long as a file


@unique
class Code(Enum):
    """The code at the end of an error message, by name; docs/errors.md explains all."""

    # settings
    NO_SETTINGS_FILE = "D101"
    NOT_YAML = "D102"
    UNKNOWN_KEY = "D103"
    WRONG_VALUE = "D104"
    CONTRADICTION = "D105"
    NAMED_FILE_MISSING = "D106"
    PROFILE = "D107"
    CHANGE = "D108"
    MISFIT = "D109"
    VARIABLE = "D110"

    # command line, and arguments of the library
    USAGE = "D201"
    UNKNOWN_NAME = "D202"
    ARGUMENT = "D203"
    OPTIONS = "D204"
    OUTPUT_EXISTS = "D205"
    NOT_A_PROJECT = "D206"
    PATH = "D207"

    # data and tasks
    SOURCE_MISSING = "D301"
    SOURCE_FORMAT = "D302"
    SOURCE_ROW = "D303"
    HUB = "D304"
    TOO_FEW_PROBLEMS = "D305"
    NOT_PREPARED = "D306"
    PREPARED_DAMAGED = "D307"
    NO_SOLUTIONS = "D308"
    PROMPT_FILE = "D309"
    PROBLEM_TEXT = "D310"
    VERIFIER_PROGRAM = "D311"
    NOT_TRAINABLE = "D312"

    # models and adapters
    NO_MODEL = "D401"
    MODEL_CONFIG = "D402"
    UNSUPPORTED_MODEL = "D403"
    WEIGHTS = "D404"
    TOKENIZER = "D405"
    NO_ADAPTER = "D406"
    ADAPTER_DAMAGED = "D407"
    ADAPTER_MISFIT = "D408"
    ADAPTER_KIND = "D409"
    LORA_TARGETS = "D410"
    MERGING = "D411"
    BASE_DIFFERS = "D412"
    NO_TRAINABLE = "D413"

    # training and stages
    INTERRUPTED = "D501"
    OTHER_CODE = "D502"
    RUN_IN_USE = "D505"
    RESUME = "D506"
    NOT_FINITE = "D507"
    OUT_OF_MEMORY = "D508"
    NOTHING_TO_LEARN = "D509"
    CHECKPOINTS_DIFFER = "D510"
    CHANGED_DURING_STAGE = "D511"
    STAGE_FAILED = "D512"
    STAGE_MISSING = "D513"
    PROCESS_LOST = "D514"

    # results and evaluation
    NO_RESULTS = "D601"
    RESULT_DAMAGED = "D602"
    GENERATIONS_FILE = "D603"
    GENERATIONS_ROW = "D604"
    NOT_COMPARABLE = "D605"

    # machine, disk and network
    PACKAGE_MISSING = "D701"
    NO_GPU = "D702"
    COMPILER = "D703"
    PROCESSES = "D704"
    DISK_FULL = "D705"
    TEMPORARY = "D706"
    NOT_READY = "D707"
    GIT = "D708"

    # tracking and plug-ins
    TRACKING_OFF = "D801"
    TRACKING_SERVER = "D802"
    PLUGIN_BROKEN = "D803"
    PLUGIN = "D804"
    PLUGIN_PAGE = "D805"
    PUSH_REFUSED = "D806"
    SERVED_DIFFERS = "D807"
    TRACKING_REFUSED = "D808"

    # runs with Prefect
    RUN_SERVER = "D901"
    NO_DEPLOYMENT = "D902"
    NO_RUN = "D903"
    RUN_FAILED = "D904"
    RUN_LEFT = "D905"
    RUN_CANCELLED = "D906"

    def error(self, message: str | list[str], exit_code: int = 2) -> DopsdError:
        """Return the error with this code; exit status 2, unless its cause has its own."""
        return DopsdError(message, exit_code, code=self)


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


def of_system(error: OSError) -> DopsdError:
    """Return the error of a file, a folder or a stream that cannot be used, with what to do.

    Errors of the network or of the working directory name no file.
    """
    is_mistake = isinstance(error, MISTAKES) or error.errno in (errno.ENAMETOOLONG, errno.ELOOP)
    is_full = error.errno in FULL
    files = [str(name) for name in (error.filename, error.filename2) if name is not None]
    if not files and isinstance(error, FileNotFoundError):
        files = ["the working directory, or a program"]
    explained = ": ".join([error.strerror or str(error) or type(error).__name__, *files])
    return DopsdError(
        f"{explained}; {'free some space' if is_full else 'fix this'} and run the same command",
        2 if is_mistake else TEMPORARY,
        code=Code.PATH if is_mistake else Code.DISK_FULL if is_full else Code.TEMPORARY,
    )


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
