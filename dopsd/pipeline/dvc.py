"""`dopsd repro` and `dopsd commit`: DVC's commands of the same name, by the one writer of a
workspace.

The first signal to this process (SIGINT, SIGTERM, SIGHUP, SIGUSR1) stops DVC's stage: training
saves, DVC waits for it, and this process ends after both. Only a second Ctrl-C at a terminal, some
seconds later, ends them without saving. Output and exit status are DVC's; DVC asks no questions, so
that `commit` needs `--force` where it would.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from dopsd.core.errors import DopsdError
from dopsd.core.files import ASIDE, WORK
from dopsd.core.interrupts import MEANT, handling, is_at_terminal
from dopsd.core.paths import BASES
from dopsd.core.progress import log
from dopsd.pipeline.code_entries import write_entries
from dopsd.pipeline.patient_dvc import PARENT
from dopsd.pipeline.writer_lock import WriterLock, forget

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

LOCKFILE, KEPT, DAMAGED = Path("dvc.lock"), WORK / "dvc.lock", WORK / "dvc.lock.damaged"
# seconds between two times that DVC and its stage are asked to stop; training ignores repetitions
AGAIN = 5.0
ADOPT_ORPHANS = (
    36  # PR_SET_CHILD_SUBREAPER of Linux' prctl: children of children come to this process
)


class Writing:
    """DVC in a process group of its own, and the signals on their way to it."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words, self.name = words, words[0]
        self.process: subprocess.Popen[bytes] | None = None
        self.stopped_at = 0.0

    def run(self) -> int:
        """Wait for the workspace, run DVC, wait for all that it started; DVC's exit status."""
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(ADOPT_ORPHANS, 1)
        signal.signal(signal.SIGTSTP, self._go_on)
        with handling(self._note), WriterLock(self.name, lost=self.stop) as lock:
            forget()  # what cannot be read any more
            keep_lockfile(self.name)
            status = self._run_dvc(lock)
            if status and not self.stopped_at and put_aside_damaged_results(self.name):
                status = self._run_dvc(lock)
        return status if status >= 0 else 128 - status

    def _run_dvc(self, lock: WriterLock) -> int:
        """DVC's exit status, when all that it started has ended as well."""
        command = [
            sys.executable,
            "-m",
            "dopsd.pipeline.patient_dvc",
            "--wait-for-lock",
            *self.words,
        ]
        env = os.environ | {PARENT: str(os.getpid())}
        self.process = process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, process_group=0, env=env
        )
        lock.name_dvc(process.pid)
        status = self._wait(process)
        self._wait_for_orphans()
        forget(process.pid)
        return status

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        """DVC's exit status. A stop is repeated until it ends: between stages, or at the end of
        one, the first is lost.
        """
        while True:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(AGAIN)
            if self.stopped_at:
                self.stop()

    def _note(self, number: int, _: FrameType | None) -> None:
        if self.process is None:
            raise DopsdError(
                f"{self.name}: {signal.Signals(number).name} before DVC began; nothing was changed",
                128 + number,
            )
        if not self.stopped_at:
            self.stopped_at = time.monotonic()
            self.stop()
        elif (
            number == signal.SIGINT
            and time.monotonic() - self.stopped_at >= MEANT
            and is_at_terminal()
        ):
            self.stop(signal.SIGKILL)

    def _go_on(self, *_: object) -> None:
        """At Ctrl-Z: a writer that stands still would lose the workspace to another machine while
        its DVC goes on.
        """
        log(f"{self.name}: is not suspended; Ctrl-C stops it, and the same command continues")

    def stop(self, number: int = signal.SIGINT) -> None:
        """As Ctrl-C would: DVC waits for its stage, and begins no other."""
        if self.process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def _wait_for_orphans(self) -> None:
        """Where DVC or a launcher was killed, what it had started may still be saving."""
        with suppress(ChildProcessError):
            while True:
                os.wait()


def keep_lockfile(name: str) -> None:
    """Put back a dvc.lock that a full disk or a kill cut off, which DVC refuses to read; else keep
    a copy of it.

    One with the marks of a git merge is its user's to resolve: DVC says what is wrong with it.
    """
    if not LOCKFILE.is_file():
        return
    content, backup = LOCKFILE.read_bytes(), KEPT.read_bytes() if KEPT.is_file() else None
    if content == backup:
        return
    if _is_lockfile(content):
        _replace(KEPT, content)
    elif backup is not None and b"<<<<<<<" not in content:
        _replace(DAMAGED, content)
        _replace(LOCKFILE, backup)
        log(
            f"{name}: {LOCKFILE} was cut off or damaged; put back as it was before the last run"
            f" (the damaged one: {DAMAGED})"
        )


def put_aside_damaged_results(name: str) -> bool:
    """Move entries of DVC's run cache whose content is not what their names say to work/aside;
    whether there were any.

    DVC fails at an entry that was cut off where it is still valid YAML, and at a folder without
    entries, which is removed.
    """
    from dvc.repo import Repo

    is_any = False
    for folder in Path(os.path.relpath(Repo().stage_cache.cache_dir)).glob("??/*"):
        for path in folder.glob("*"):
            if re.fullmatch("[0-9a-f]{64}", path.name) and _digest(path) != path.name:
                aside = ASIDE / "run-cache"
                aside.mkdir(parents=True, exist_ok=True)
                with suppress(FileNotFoundError):
                    shutil.move(path, aside / path.name)
                log(f"{name}: {path}: damaged; moved to {aside}, and running again")
                is_any = True
        with suppress(OSError):  # there are entries left
            folder.rmdir()
            is_any = True
    return is_any


def _digest(path: Path) -> str:
    """As DVC names an entry of its run cache; nothing where the file is no YAML."""
    from dvc.utils import dict_sha256
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        digest: str = dict_sha256(
            YAML(typ="safe").load(path.read_bytes()), exclude=["size", "nfiles"]
        )
        return digest
    except (YAMLError, ValueError, TypeError):
        return ""


def _is_lockfile(content: bytes) -> bool:
    from dvc.schema import COMPILED_LOCKFILE_SCHEMA
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError
    from voluptuous import Invalid

    try:
        COMPILED_LOCKFILE_SCHEMA(YAML(typ="safe").load(content))
    except (YAMLError, Invalid, ValueError):
        return False
    return True


def _replace(path: Path, content: bytes) -> None:
    tmp = path.with_name(f"{path.name}.tmp")
    tmp.write_bytes(content)
    tmp.rename(path)


def run(words: Sequence[str]) -> int:
    """Run `dvc WORDS`, such as `repro --force train`, as the workspace's one writer; its exit
    status.
    """
    if not find_spec("dvc"):
        raise DopsdError(
            f"{words[0]}: dvc is not installed, which runs the stages; pip install dvc"
        )
    if not Path("dvc.yaml").is_file():
        raise DopsdError(f"{words[0]}: dvc.yaml: no such file; run this in the project's folder")
    if "code/" in Path("dvc.yaml").read_text():
        write_entries()
        BASES.mkdir(exist_ok=True)  # a dependency, also where all bases are downloaded
    return Writing(words).run()
