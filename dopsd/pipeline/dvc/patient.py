"""`python -m dopsd.pipeline.dvc.patient WORDS`: run DVC, which waits for its stage at any signal.

DVC itself does so at Ctrl-C only. Slurm signals every process of a job: SIGTERM would kill DVC
while its stage still saves. Signals get handlers and not SIG_IGN, which a stage would inherit. When
the process that started this one dies, this one dies too. Where a disk failed, a last line names
it: DVC's own may name a link or a lock.
"""

import errno
import logging
import os
import runpy
import shutil
import signal
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dopsd.core.environment import DVC_PID
from dopsd.core.errors import FULL, of_system
from dopsd.core.processes import ENDS_WITH_INPUT, end_with_input, signal_with_parent

PARENT = "DOPSD_WRITER"  # environment variable: id of the process that started this one

DISK = (*FULL, errno.EROFS, errno.EIO)  # of a disk, whatever DVC was doing


class Disk(logging.Handler):
    """Find the error of a disk behind what DVC logs; the first one that names a file is kept."""

    error: OSError | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Look through an exception and what it came from; DVC then logs the disk as its cause."""
        outer = record.exc_info[1] if record.exc_info else None
        if outer is None or not (found := _behind(outer)):
            return
        self.error = self.error or found
        if not isinstance(outer, OSError):
            self.error.__context__, outer.__cause__ = outer.__cause__, self.error


def _behind(outer: BaseException) -> OSError | None:
    """Return the error of the disk that led to an exception; it has the folder that was written."""
    from dvc_data.hashfile.checkout import LinkError  # loaded when something fails

    chain = [*_chain(outer)]
    of_disk = [e for e in chain if isinstance(e, OSError) and e.errno in DISK]
    if named := [e for e in of_disk if e.filename]:
        return _in_folder(named[-1], Path(named[-1].filename2 or named[-1].filename).parent)
    unlinked = [Path(e.path).parent for e in chain if isinstance(e, LinkError)]
    is_of_disk = of_disk or unlinked or any(isinstance(e, sqlite3.Error) for e in chain)
    return _refusal(unlinked) if is_of_disk else None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error:
        yield error
        error = error.__cause__ or error.__context__


def _in_folder(error: OSError, folder: Path) -> OSError:
    return OSError(error.errno, error.strerror, os.path.relpath(folder))


def _refusal(folders: list[Path]) -> OSError | None:
    """Return the error of writing to the first folder that refuses it, of some and DVC's own."""
    from dvc.dirs import site_cache_dir

    for folder in (*folders, *map(Path, (".", ".dvc/tmp", ".dvc/cache", site_cache_dir()))):
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(bytes(1 << 16))
        except OSError as error:
            return _in_folder(error, folder)
    return None


def main() -> None:
    """Install the handlers, then become DVC with this process' arguments."""
    # a shell starts background commands with SIGINT ignored
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, lambda *_: None)
    if os.environ.pop(ENDS_WITH_INPUT, ""):
        end_with_input(signal.SIGINT)
    if parent := os.environ.pop(PARENT, ""):
        signal_with_parent(signal.SIGKILL)
        if str(os.getppid()) != parent:
            sys.exit(128 + signal.SIGKILL)
    os.environ[DVC_PID] = str(os.getpid())
    # bash replaces itself by the stage; dash would stay, and survive a killed DVC
    if bash := shutil.which("bash"):
        os.environ["SHELL"] = bash
    disk = Disk()
    for name in ("dvc", "dvc_data", "dvc_objects"):
        logging.getLogger(name).addHandler(disk)
    try:
        runpy.run_module("dvc", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if not ended.code or not disk.error:
            raise
        line = of_system(disk.error)
        sys.stderr.write(f"dopsd: {line.coded}\n")
        sys.exit(line.exit_code)


if __name__ == "__main__":
    main()
