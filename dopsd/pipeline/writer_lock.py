"""Lock `work/writer.lock`: one DVC writer per workspace, across machines and jobs.

DVC's own locks hold process ids, which mean nothing on another machine. This lock names host, job
and process, and its holder touches the file every few seconds. A lock that was not touched for
MISSED intervals is stale, and the next writer takes over. Clocks of two machines are never
compared: a waiting writer watches whether the file changes.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from dopsd.core.files import WORK, write_json
from dopsd.core.progress import log

if TYPE_CHECKING:
    from collections.abc import Callable

LOCK = WORK / "writer.lock"
RWLOCK = Path(".dvc/tmp/rwlock")  # DVC's list of processes that read and write each path
INTERVAL = "DOPSD_BEAT_SECONDS"  # environment variable: seconds between two touches of the lock
MAX_INTERVAL = 3600  # seconds
MISSED = 10


@dataclass(frozen=True)
class Writer:
    """Content of the lock file: the process that holds the workspace."""

    token: str
    host: str
    job: str | None
    pid: int
    machine: str  # process ids compare only between equal values
    interval: float  # seconds
    dvc: int | None = None  # process and process group of DVC

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}{f', Slurm job {self.job}' if self.job else ''}"

    @property
    def is_gone(self) -> bool:
        """Whether the writer, its DVC and its stage have ended; False for other machines."""
        if self.machine != _machine():
            return False
        return not _exists(os.kill, self.pid) and not (self.dvc and _exists(os.killpg, self.dvc))


def _machine() -> str:
    """Identify this boot and process namespace; two containers may share a host name."""
    with suppress(OSError):
        return (
            f"{Path('/proc/sys/kernel/random/boot_id').read_text(encoding='utf-8').strip()}"
            f" {Path('/proc/self/ns/pid').readlink()}"
        )
    return socket.gethostname()


def _exists(kill: Callable[[int, int], None], number: int) -> bool:
    try:
        kill(number, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _read(path: Path) -> tuple[Writer | None, int]:
    """Return the holder (None while the file is being written) and the time of the last touch.

    The file is opened first: network file systems refresh the times of an opened file.
    """
    with path.open(encoding="utf-8") as file:
        stamp = os.fstat(file.fileno()).st_mtime_ns
        with suppress(ValueError, TypeError, OverflowError, RecursionError):
            writer = Writer(**json.load(file))
            numbers = [writer.pid, writer.dvc or 1]
            if (
                all(isinstance(n, int) and 0 < n < 2**31 for n in numbers)
                and 0 < float(writer.interval) < MAX_INTERVAL
            ):
                return replace(writer, interval=float(writer.interval)), stamp
    return None, stamp


def _create(path: Path, text: str) -> bool:
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return False
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    return True


class WriterLock:
    """Context that holds the workspace.

    Args:
        command: Command that messages name.
        lost: Called if another writer took over the workspace.
        tell: Called with each message.
    """

    def __init__(
        self,
        command: str,
        lost: Callable[[], None] = lambda: None,
        tell: Callable[[str], None] = log,
    ) -> None:
        self.command, self.lost, self.tell = command, lost, tell
        job, interval = os.environ.get("SLURM_JOB_ID"), float(os.environ.get(INTERVAL, "6"))
        host = socket.gethostname()
        self.me = Writer(uuid.uuid4().hex, host, job, os.getpid(), _machine(), interval)
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        WORK.mkdir(exist_ok=True)
        self._wait()
        self._beats = threading.Thread(target=self._beat, daemon=True)
        self._beats.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._beats.join()
        with suppress(FileNotFoundError):
            if self._is_mine():
                LOCK.unlink()

    def name_dvc(self, pid: int) -> None:
        """Write DVC's process id to the lock, so that others can clean up after a killed DVC."""
        self.me = replace(self.me, dvc=pid)
        fresh = LOCK.with_name(f"{LOCK.name}.{self.me.token}")
        fresh.write_text(self._text, encoding="utf-8")
        fresh.rename(LOCK)

    @property
    def _text(self) -> str:
        return json.dumps(asdict(self.me)) + "\n"

    def _is_mine(self) -> bool:
        holder, _ = _read(LOCK)
        return holder is not None and holder.token == self.me.token

    def _wait(self) -> None:
        last_state, changed_at, announced_token = None, time.monotonic(), None
        while not _create(LOCK, self._text):
            try:
                state = _read(LOCK)
            except FileNotFoundError:
                continue
            holder, now = state[0], time.monotonic()
            if state != last_state:
                last_state, changed_at = state, now
            silence, interval = now - changed_at, holder.interval if holder else self.me.interval
            if (holder and holder.is_gone) or silence > MISSED * interval:
                self._take_over(state)
                continue
            if holder is None and announced_token is None and silence > interval:
                announced_token = ""
                self.tell(
                    f"{self.command}: {LOCK}: names no writer; taking over if unchanged for"
                    f" {MISSED * interval:.0f} s"
                )
            if holder and holder.token != announced_token:
                announced_token = holder.token
                self.tell(
                    f"{self.command}: {LOCK}: {holder} runs DVC in this workspace; waiting for its"
                    " end"
                )
            time.sleep(min(1.0, interval / 2))

    def _take_over(self, stale: tuple[Writer | None, int]) -> None:
        """Remove a stale lock; renaming lets one of several writers win, a fresh lock goes back."""
        aside = LOCK.with_name(f"{LOCK.name}.{self.me.token}")
        with suppress(FileNotFoundError):
            LOCK.rename(aside)
            if _read(aside) != stale:
                _create(LOCK, aside.read_text(encoding="utf-8"))
            elif stale[0]:
                self.tell(
                    f"{self.command}: {LOCK}: {stale[0]} ended without removing the lock; taking"
                    " over"
                )
                forget(stale[0].dvc)
            aside.unlink()

    def _beat(self) -> None:
        while not self._ended.wait(self.me.interval):
            try:
                is_mine = self._is_mine() or not _read(LOCK)[0]
            except FileNotFoundError:
                with suppress(OSError):
                    _create(LOCK, self._text)
                continue
            except OSError:  # of a network file system: skip one touch
                continue
            if not is_mine:
                self.tell(
                    f"{self.command}: {LOCK}: another writer took over this workspace; stopping"
                )
                self.lost()
                return
            with suppress(OSError):
                os.utime(LOCK)


def forget(dvc: int | None = None) -> None:
    """Remove the entries of a killed DVC from DVC's list of readers and writers.

    On another machine its id may belong to a living process. A list that a full disk or a kill cut
    off is removed as a whole, since DVC would refuse to run.

    Args:
        dvc: Process id of the killed DVC; None removes no entries.
    """
    if not RWLOCK.is_file():
        return
    with RWLOCK.with_name("rwlock.lock").open("a", encoding="utf-8") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        try:
            entries = json.loads(RWLOCK.read_bytes())
            writes = {
                path: info for path, info in entries.get("write", {}).items() if info["pid"] != dvc
            }
            reads = {
                path: [i for i in infos if i["pid"] != dvc]
                for path, infos in entries.get("read", {}).items()
            }
        except (ValueError, AttributeError, TypeError, KeyError):
            RWLOCK.unlink()
            return
        if dvc is not None:
            write_json(
                RWLOCK,
                {"write": writes, "read": {path: infos for path, infos in reads.items() if infos}},
            )
