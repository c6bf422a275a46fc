"""Checkpoints outside this disk (`checkpoints.remote`): copied while training goes on, and fetched.

A copy is REMOTE/<training folder>/step-<update>.<digest>/. Its digests.json is written last, so
that one that was cut off is never taken for a whole one. The digest in the name keeps two machines
that save the same update from mixing their files. As on disk, only the newest copies can be
resumed.
"""

import json
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

from dopsd.core.errors import TEMPORARY, Code, DopsdError
from dopsd.core.files import write_json
from dopsd.core.fingerprint import sha256
from dopsd.core.progress import log
from dopsd.models.adapter_files import DIGESTS, read_digests
from dopsd.training import checkpoint
from dopsd.training.checkpoint import KEPT_RESUMABLE, RESUMED, folders, update_of
from dopsd.training.run_identity import IDENTITY, read_identity

KEY = "checkpoints.remote"
COPY = re.compile(r"step-(\d{6})\.[0-9a-f]{12}")
ENDING = 900.0  # seconds that a run waits at its end for the last copies
FAILURES = 2  # in a row, after which a remote is left alone until the next checkpoint


class RemoteFolder:
    """The folder of one run in `checkpoints.remote`.

    Args:
        remote: a folder or any address that fsspec knows, such as s3://bucket/path.
        run: name of the run's training folder in work/.
    """

    def __init__(self, remote: str, run: str) -> None:
        from fsspec.core import url_to_fs

        try:
            self.fs, root = url_to_fs(remote)
        except ImportError as error:
            raise Code.PACKAGE_MISSING.error(f"{KEY}: {remote}: {error}") from None
        except ValueError as error:
            raise Code.WRONG_VALUE.error(f"{KEY}: {remote}: {error}") from None
        self.remote, self.path = remote, f"{root.rstrip('/')}/{run}"
        self.whole: set[str] = set()  # copies that were seen to be whole
        self.forgotten: set[str] = set()  # those of them that cannot be resumed any more

    def copies(self) -> list[str]:
        """Return the names of all whole copies, oldest first."""
        self.fs.invalidate_cache()
        if not self.fs.isdir(self.path):
            return []
        paths = [path.rstrip("/") for path in self.fs.ls(self.path, detail=False)]
        names = {path.rpartition("/")[2] for path in paths}
        new = {name for name in names - self.whole if COPY.fullmatch(name)}
        self.whole &= names
        self.whole |= {n for n in new if self.fs.exists(f"{self.path}/{n}/{DIGESTS}")}
        return sorted(self.whole)

    def put(self, step: Path) -> None:
        """Copy a checkpoint, its digests last, and the run's identity.

        Files that only resuming needs may be gone by now, since a newer checkpoint has them.
        """
        name = f"{step.name}.{sha256(step / DIGESTS)[:12]}"
        target, done = f"{self.path}/{name}", self.copies()
        self.fs.makedirs(self.path, exist_ok=True)
        self._put_identity(step.parent / IDENTITY)
        if name not in done:
            self.fs.makedirs(target, exist_ok=True)
            for file in read_digests(step):
                if (step / file).is_file() or not file.startswith(RESUMED):
                    self.fs.put_file(str(step / file), f"{target}/{file}")
            self.fs.put_file(str(step / DIGESTS), f"{target}/{DIGESTS}")
        updates = sorted({update_of_copy(copy) for copy in {*done, name}})
        for copy in {*done} - self.forgotten:
            if update_of_copy(copy) not in updates[-KEPT_RESUMABLE:]:
                self._forget_resuming(f"{self.path}/{copy}")
                self.forgotten.add(copy)

    def _forget_resuming(self, folder: str) -> None:
        for path in self.fs.ls(folder, detail=False):
            if path.rpartition("/")[2].startswith(RESUMED):
                self.fs.rm_file(path)

    def _put_identity(self, file: Path) -> None:
        """Copy the run's identity unless it is there; a kill leaves the old one or the new one."""
        if self.identity() == json.loads(file.read_text(encoding="utf-8")):
            return
        tmp = f"{self.path}/.{IDENTITY}.{uuid4().hex[:8]}"
        self.fs.put_file(str(file), tmp)
        self.fs.mv(tmp, f"{self.path}/{IDENTITY}")

    def identity(self) -> dict[str, Any]:
        """Return the run's identity (run.json); empty if there is none, or a damaged one."""
        path = f"{self.path}/{IDENTITY}"
        with suppress(ValueError):
            return dict(json.loads(self.fs.cat_file(path))) if self.fs.exists(path) else {}
        return {}

    def get(self, copy: str, step: Path) -> bool:
        """Fetch a copy as the checkpoint folder `step`; return whether it is intact."""
        tmp = step.with_name(f"{step.name}.tmp")
        shutil.rmtree(tmp, ignore_errors=True)
        tmp.mkdir(parents=True)
        for path in self.fs.ls(f"{self.path}/{copy}", detail=False):
            self.fs.get_file(path, str(tmp / path.rpartition("/")[2]))
        if checkpoint.fault(tmp):
            shutil.rmtree(tmp)
            return False
        shutil.rmtree(step, ignore_errors=True)  # a damaged one
        tmp.rename(step)
        return True


def update_of_copy(name: str) -> int:
    """Return the update of a copy, from its name."""
    match = COPY.fullmatch(name)
    return int(match[1]) if match else 0


class RemoteCopies:
    """Copies checkpoints in the background; the newest first, since it is the one to resume from.

    A failure is logged, and tried again with the next checkpoint and once at the end. Training
    never fails with it. Leaving the context waits for the copies that are still to be made.
    """

    def __init__(self, remote: str | None, scratch: Path) -> None:
        self.remote_folder = RemoteFolder(remote, scratch.name) if remote else None
        self.waiting: list[Path] = []
        self.change, self.is_new, self.is_ending = threading.Condition(), False, False
        self.warned = ""
        self.thread = threading.Thread(target=self._work, args=(self.remote_folder,), daemon=True)

    def __enter__(self) -> Self:
        if self.remote_folder:
            self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self.remote_folder:
            return
        with self.change:
            self.is_ending = True
            self.change.notify()
        self.thread.join(1.0)
        if self.thread.is_alive():
            log(f"train: copying the last checkpoints to {self.remote_folder.remote}")
            self.thread.join(ENDING)
        if self.thread.is_alive():
            log(f"train: {self.remote_folder.remote} takes too long; the rest is on this disk only")

    def add(self, step: Path) -> None:
        """Copy a saved checkpoint soon; return at once."""
        if self.remote_folder:
            with self.change:
                self.waiting.append(step)
                self.is_new = True
                self.change.notify()

    def _work(self, remote_folder: RemoteFolder) -> None:
        while True:
            with self.change:
                while not self.is_new and not self.is_ending:
                    self.change.wait()
                is_last, self.is_new = self.is_ending, False
            self._copy_waiting(remote_folder)
            if is_last:
                return

    def _copy_waiting(self, remote_folder: RemoteFolder) -> None:
        """Try each waiting checkpoint once, unless the remote seems to be out of order."""
        tried: set[Path] = set()
        failures = 0
        while failures < FAILURES:
            with self.change:
                self.waiting = [step for step in self.waiting if step.is_dir()]
                left = {*self.waiting} - tried
            if not left:
                return
            step = max(left, key=update_of)
            tried.add(step)
            try:
                remote_folder.put(step)
            except Exception as error:  # whatever a store does: the checkpoint on disk is safe
                failures += 1
                self._say(step, remote_folder, _one_line(error))
            else:
                failures = 0
                with self.change:
                    self.waiting.remove(step)

    def _say(self, step: Path, remote_folder: RemoteFolder, reason: str) -> None:
        if reason != self.warned:
            log(
                f"train: {KEY}: {step.name} was not copied to {remote_folder.remote} ({reason}); it"
                " is safe on this disk, and is copied once the next checkpoint is saved"
            )
        self.warned = reason


def _one_line(error: Exception) -> str:
    """Return an error's type and message in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


@contextmanager
def _readable(remote: str) -> Iterator[None]:
    try:
        yield
    except DopsdError:
        raise
    except Exception as error:
        raise Code.TEMPORARY.error(
            f"train: {KEY}: {remote} cannot be read ({_one_line(error)}), so a run that another"
            f" machine began would start again; repair it, or set {KEY}=null",
            TEMPORARY,
        ) from error


def fetch_checkpoints(remote: str | None, scratch: Path) -> None:
    """Fetch the checkpoints of a run that are further than those on this disk.

    Args:
        remote: `checkpoints.remote`; None: there is none.
        scratch: the run's training folder in work/.
    """
    if not remote:
        return
    with _readable(remote):
        remote_folder = RemoteFolder(remote, scratch.name)
        here = {update_of(step) for step in folders(scratch) if not checkpoint.fault(step)}
        copies = [copy for copy in remote_folder.copies() if update_of_copy(copy) not in here]
        if not copies or update_of_copy(copies[-1]) <= max(here, default=0):
            return
        known, local = remote_folder.identity(), read_identity(scratch)
        if not known:
            log(
                f"train: {remote_folder.path}: {IDENTITY} is missing or damaged; its copies are not"
                " used"
            )
            return
        if local and local["history"] != known.get("history"):
            log(f"train: {remote_folder.path}: of other code than {scratch}; not fetched")
            return
        scratch.mkdir(parents=True, exist_ok=True)
        if not local:
            write_json(scratch / IDENTITY, known)
        taken = set()
        for copy in copies:
            update = update_of_copy(copy)
            if update not in taken and remote_folder.get(copy, scratch / f"step-{update:06d}"):
                taken.add(update)
    if taken:
        log(
            f"train: fetched {len(taken)} checkpoints of this run up to update {max(taken)} from"
            f" {remote}"
        )
