"""Progress of long work: a bar on a terminal, plain lines elsewhere, and work/<stage>.json for whoever watches."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from dopsd.errors import DopsdError

WORK = Path("work")
PLAIN_EVERY = 10.0  # seconds between plain lines


def is_main_rank() -> bool:
    return os.environ.get("RANK", "0") == "0"


class LastingFile(io.FileIO):
    """A file whose reader may go away and whose disk may be full: what cannot be written is dropped."""

    def write(self, data: Any) -> int:
        with contextlib.suppress(OSError):
            return super().write(data) or 0
        return len(data)


def outlive_readers() -> None:
    """Let no error of standard output or standard error end the work of this process."""
    for name, number in (("stdout", 1), ("stderr", 2)):
        with contextlib.suppress(OSError):  # closed from the start
            binary = io.BufferedWriter(LastingFile(number, "w", closefd=False))
            stream = io.TextIOWrapper(binary, errors="backslashreplace", line_buffering=True)
            setattr(sys, name, stream)


def log(text: str) -> None:
    """One line to standard error, from the first rank only."""
    if is_main_rank():
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def write_json(path: Path, value: object) -> None:
    """Write to a temporary name, then rename, so that a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tmp = path.with_name(f".{path.name}.tmp")
    tmp.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")
    tmp.rename(path)


def read_json(path: Path, made_by: str) -> Any:
    """A result of an earlier stage; where it is missing, the command that makes it is named."""
    if not path.is_file():
        raise DopsdError(
            f"{path}: no such file; run `{made_by}` for this task, method and seed first"
        )
    return parse_object(path.read_bytes(), path)


def parse_object(content: bytes | str, place: object) -> dict[str, Any]:
    """A JSON object; what is none is refused with its place: a file, or a file and a row."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DopsdError(
            f"{place}: not valid JSON ({error}); restore it, or remove it and run what makes it"
        ) from error
    if not isinstance(found, dict):
        raise DopsdError(
            f"{place}: expected a JSON object, found {content[:40]!r}; restore it, or make it again"
        )
    return found


@contextlib.contextmanager
def fresh_folder(path: Path) -> Iterator[Path]:
    """A folder to write in that takes the place of `path` when all of it is written."""
    tmp = path.with_name(f".{path.name}.tmp")
    shutil.rmtree(tmp, ignore_errors=True)
    tmp.mkdir(parents=True)
    yield tmp
    shutil.rmtree(path, ignore_errors=True)
    tmp.rename(path)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02d}"


class Progress:
    """Counts `done` of `total` units. Use as a context manager; `step` adds units and a short note of figures."""

    def __init__(self, stage: str, total: int, unit: str, scratch: str = "") -> None:
        self.stage, self.total, self.unit, self.scratch = stage, total, unit, scratch
        self.done = self.first = 0
        self.started = self.said = time.monotonic()
        self.bar = None

    def __enter__(self) -> Self:
        if is_main_rank() and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            columns = [
                "[bold]{task.description}",
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"),
            ]
            note = TextColumn("{task.fields[note]}")
            self.bar = Bar(
                *columns, TimeRemainingColumn(), note, console=Console(stderr=True), transient=False
            )
            self.bar.start()
            self.line = self.bar.add_task(self.stage, total=self.total, rate="", note="")
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar:
            self.bar.stop()
        self._write()

    def resume_at(self, done: int) -> None:
        self.done = self.first = done
        self._write()

    def step(self, units: int = 1, note: str = "") -> None:
        self.done += units
        if not is_main_rank():
            return
        now = time.monotonic()
        if self.bar:
            self.bar.update(
                self.line, completed=self.done, rate=f"{self.rate:.2f} {self.unit}/s", note=note
            )
        elif now - self.said > PLAIN_EVERY or (units and self.done == self.total):
            self.said = now
            left = _clock((self.total - self.done) / self.rate) if self.rate else "?"
            log(
                f"{self.stage}: {self.done}/{self.total} {self.unit}s, {self.rate:.2f}/s, {left} left  {note}".rstrip()
            )
        self._write()

    @property
    def rate(self) -> float:
        """Units a second since the start of this process."""
        return (self.done - self.first) / max(time.monotonic() - self.started, 1e-9)

    def _write(self) -> None:
        with contextlib.suppress(
            OSError
        ):  # a full disk must not hide the error that it caused elsewhere
            if not is_main_rank():
                return
            state = {
                "done": self.done,
                "total": self.total,
                "rate": round(self.rate, 4),
                "scratch": self.scratch,
            }
            write_json(WORK / f"{self.stage}.json", state)
