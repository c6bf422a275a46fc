"""The place of a run's checkpoints outside this disk (`checkpoints.remote`).

A copy is REMOTE/<run's folder>/step-<update>.<digest>/. Its digests.json is written last, so that
one that was cut off is never taken for a whole one. The digest in the name keeps two machines that
save the same update from mixing their files. As on disk, only the newest copies can be resumed.
"""

from __future__ import annotations

import json
import re
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError
from dopsd.core.fingerprint import sha256
from dopsd.models.adapter_files import DIGESTS, read_digests
from dopsd.training import checkpoint
from dopsd.training.checkpoint import KEPT_RESUMABLE, RESUMED
from dopsd.training.resuming import RECORD

if TYPE_CHECKING:
    from pathlib import Path

KEY = "checkpoints.remote"
COPY = re.compile(r"step-(\d{6})\.[0-9a-f]{12}")


class Place:
    """The folder of one run in `checkpoints.remote`.

    Args:
        remote: a folder or any address that fsspec knows, such as s3://bucket/path.
        run: name of the run's folder in work/.

    Raises:
        DopsdError: if the address is unknown, or needs a package that is not installed.
    """

    def __init__(self, remote: str, run: str) -> None:
        from fsspec.core import url_to_fs

        try:
            self.fs, root = url_to_fs(remote)
        except ImportError as error:
            raise DopsdError(f"{KEY}: {remote}: {error}", code=Code.PACKAGE_MISSING) from None
        except ValueError as error:
            raise DopsdError(f"{KEY}: {remote}: {error}", code=Code.WRONG_VALUE) from None
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
        """Copy a checkpoint, its digests last, and the run's record.

        Files that only resuming needs may be gone by now, since a newer checkpoint has them.
        """
        name = f"{step.name}.{sha256(step / DIGESTS)[:12]}"
        target, done = f"{self.path}/{name}", self.copies()
        self.fs.makedirs(self.path, exist_ok=True)
        self._put_record(step.parent / RECORD)
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

    def _put_record(self, record: Path) -> None:
        """Copy the run's record unless it is there; a kill leaves the old one or the new one."""
        if self.record() == json.loads(record.read_text(encoding="utf-8")):
            return
        tmp = f"{self.path}/.{RECORD}.{uuid4().hex[:8]}"
        self.fs.put_file(str(record), tmp)
        self.fs.mv(tmp, f"{self.path}/{RECORD}")

    def record(self) -> dict[str, Any]:
        """Return the run's record (run.json); empty if there is none, or a damaged one."""
        path = f"{self.path}/{RECORD}"
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
    found = COPY.fullmatch(name)
    return int(found[1]) if found else 0
