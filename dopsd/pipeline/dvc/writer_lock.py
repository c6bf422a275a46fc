"""Lock `work/writer.lock`: one DVC writer per workspace, across machines and jobs.

DVC gives up its own lock while a stage runs, and its list of processes means nothing on another
machine. This lock is a lease of flufl.lock, which is safe on NFS; its holder renews it. A holder
that has ended on this machine is replaced at once, any other when its lease is over. Clocks of
machines that share a folder must agree within LEASE.
"""

import logging
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Self

import psutil
from flufl.lock import Lock, NotLockedError, TimeOutError

from dopsd.core.files import WORK
from dopsd.core.progress import log

LOCK = WORK / "writer.lock"
LEASE = timedelta(seconds=60)
RENEW_EVERY = 10.0  # seconds
LOOK_EVERY = timedelta(seconds=1)
logging.getLogger("flufl.lock").setLevel(logging.CRITICAL)  # it logs each look as an error


class _Lease(Lock):
    @property
    def hostname(self) -> str:
        """Host, process namespace, and the Slurm job if there is one."""
        namespace = ""
        with suppress(OSError):
            namespace = str(Path("/proc/self/ns/pid").stat().st_ino)
        return "+".join([socket.gethostname(), namespace, os.environ.get("SLURM_JOB_ID", "")])

    @property
    def holder(self) -> str:
        """Holder as messages name it; empty if there is none."""
        with suppress(NotLockedError):
            where, pid, _ = self.details
            host, _, job = [*where.split("+"), "", ""][:3]
            return f"Slurm job {job} on {host}" if job else f"process {pid} on {host}"
        return ""

    def end_if_dead(self) -> bool:
        """End the lease of a holder that has ended on this machine, and return whether it has."""
        with suppress(OSError, NotLockedError), LOCK.open(encoding="utf-8") as file:
            where, pid, _ = self.details
            # process ids compare only in one namespace of one host
            if where.split("+")[:2] == self.hostname.split("+")[:2] and not is_running(pid):
                os.utime(file.fileno(), (0, 0))  # not by its name: a new lock may have it by now
                return True
        return False


def is_running(pid: int, word: str = "") -> bool:
    """Tell whether a process of this machine runs, whose command has a word."""
    try:
        return word in " ".join(psutil.Process(pid).cmdline())
    except psutil.AccessDenied:
        return True
    except psutil.Error:  # none, or a zombie
        return False


class WriterLock:
    """Context that holds the workspace."""

    def __init__(
        self,
        command: str,
        lost: Callable[[], None] = lambda: None,
        tell: Callable[[str], None] = log,
    ) -> None:
        self.command, self.lost, self.tell = command, lost, tell
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        WORK.mkdir(exist_ok=True)
        self._lock = _Lease(str(LOCK), LEASE)
        try:
            self._wait()
        except BaseException as error:  # a signal, a full disk
            if isinstance(error, OSError) and not error.filename:
                error.filename = str(LOCK)
            self._lock.unlock(unconditionally=True)
            raise
        self._renewals = threading.Thread(target=self._renew, daemon=True)
        self._renewals.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._renewals.join()
        with suppress(OSError):
            self._lock.unlock(unconditionally=True)

    def _wait(self) -> None:
        patience, announced = timedelta(), ""
        while True:
            with suppress(TimeOutError):
                return self._lock.lock(patience)
            patience, holder = LOOK_EVERY, self._lock.holder
            if self._lock.end_if_dead():
                self._tell(f"{holder} ended without removing the lock; taking over")
            elif holder not in ("", announced):
                announced = holder
                self._tell(f"{holder} runs DVC in this workspace; waiting for its end")

    def _renew(self) -> None:
        while not self._ended.wait(RENEW_EVERY):
            try:
                self._lock.refresh()
            except NotLockedError:
                self._tell("another writer took over this workspace; stopping")
                self.lost()
                return
            except OSError:  # of a network file system: skip one renewal
                continue

    def _tell(self, message: str) -> None:
        self.tell(f"{self.command}: {LOCK}: {message}")
