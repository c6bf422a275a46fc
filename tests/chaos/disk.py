"""The preloaded library that fails a write, and the mapped file that tells it what to fail."""

import errno
import shutil
import struct
import subprocess
from pathlib import Path

from chaos.plan import DISK

CLASSES = 16
# counts; class, number, errno, is_failing, is_hit; path
LAYOUT = struct.Struct(f"={CLASSES}q5q256s")


def library(place: Path) -> Path | None:
    """The compiled library; None where there is no compiler."""
    compiler, out = shutil.which("gcc") or shutil.which("cc"), place / "disk.so"
    if not compiler:
        return None
    if not out.is_file():
        source = Path(__file__).with_name("disk.c")
        flags = ("-shared", "-fPIC", "-O2", "-Wno-format-truncation")
        words = [compiler, *flags, source, "-o", out, "-ldl"]
        subprocess.run(words, check=True, capture_output=True)
    return out


class Disk:
    """One workspace's disk, which counts writes and fails the one that it is told to fail."""

    def __init__(self, folder: Path, state: Path, preloaded: Path) -> None:
        self.file = state / "disk"
        self.file.write_bytes(LAYOUT.pack(*[0] * CLASSES, -1, 0, 0, 0, 0, b""))
        self.env = {
            "LD_PRELOAD": str(preloaded),
            "CHAOS_DISK_STATE": str(self.file),
            "CHAOS_DISK_ROOT": str(folder),
            "CHAOS_DISK_CLASSES": ":".join(DISK),
        }

    def _read(self) -> tuple:
        return LAYOUT.unpack(self.file.read_bytes())

    def fail(self, number_of_class: int, at: int, kind: str) -> None:
        """Fail the at-th operation of this class from now on."""
        code = {"enospc": errno.ENOSPC, "eio": errno.EIO}[kind]
        self._write(LAYOUT.pack(*[0] * CLASSES, number_of_class, at, code, 0, 0, b""))

    def free(self) -> None:
        """No operation fails any more."""
        self._write(LAYOUT.pack(*[0] * CLASSES, -1, 0, 0, 0, 0, b""))

    def _write(self, raw: bytes) -> None:
        with self.file.open("r+b") as out:  # the same inode: it is mapped
            out.write(raw)

    @property
    def counts(self) -> list[int]:
        return list(self._read()[: len(DISK)])

    @property
    def hit(self) -> str:
        """The file whose write failed; empty while none did."""
        *_, is_hit, path = self._read()
        return path.split(b"\0")[0].decode() if is_hit else ""
