"""Start `python -m dopsd` and `dopsd`; failures while modules load, and Ctrl-C, take one line.

Little is imported before the handler of Ctrl-C is in place: until then Python prints a traceback.
"""

import signal
import sys
from types import FrameType
from typing import NoReturn

TYPE_CHECKING = False  # as of `typing`, which takes longer to load than this module

# written out with its code, since a Ctrl-C may come while the table of codes is loading
INTERRUPTED = "dopsd: interrupted; the same command continues (D501)\n"
CODE = 128 + signal.SIGINT
IMPORTING = "<frozen importlib._bootstrap>"  # the file of Python's own frames during an import


def main() -> int:
    """Run the command line; return its exit status."""
    _use_utf8()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell's `&` ignores it
        signal.signal(signal.SIGINT, _interrupt)
        sys.unraisablehook = _unraisable
    try:
        return _run()
    except KeyboardInterrupt:
        _end_at_once()
        sys.stderr.write(INTERRUPTED)
        return CODE
    finally:
        _end_at_once()


def _use_utf8() -> None:
    """Start again in Python's UTF-8 mode where the locale has another encoding.

    Files, names of files, arguments and output then are UTF-8, in all libraries and processes.
    """
    if sys.getfilesystemencoding() != "utf-8":
        import os

        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])


def _run() -> int:
    if sys.flags.optimize > 1:
        sys.stderr.write(
            "dopsd: PYTHONOPTIMIZE=2 (python -OO) drops docstrings, which transformers needs; unset"
            " it (D110)\n"
        )
        return 2
    from dopsd.core.errors import DopsdError

    try:
        from dopsd.cli import main as command_line
    except DopsdError as error:  # of an algorithm or a task that an entry point brings
        sys.stderr.write(f"dopsd: {error.coded}\n")
        return error.exit_code
    return command_line.main()


def _interrupt(_: int, frame: "FrameType | None") -> None:
    """Raise KeyboardInterrupt; while a module loads, end, since extensions make other errors of it.

    Nothing is half-written then: the files of results get their names once they are complete.
    """
    while frame:
        if frame.f_code.co_filename == IMPORTING:
            _end()
        frame = frame.f_back
    raise KeyboardInterrupt


def _unraisable(error: "sys.UnraisableHookArgs") -> None:
    """End at a Ctrl-C that arrived in a callback, from which Python cannot raise it."""
    if error.exc_type is KeyboardInterrupt:
        _end()
    sys.__unraisablehook__(error)


def _end() -> "NoReturn":
    import os

    os.write(2, INTERRUPTED.encode())
    os._exit(CODE)


def _end_at_once() -> None:
    """Let a later Ctrl-C end the process silently: the command is done, and Python unloads."""
    if signal.getsignal(signal.SIGINT) is _interrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    sys.exit(main())
