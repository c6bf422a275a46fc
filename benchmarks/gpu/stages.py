"""Run stages of dopsd in this process, one after the other, and report each at once."""

from __future__ import annotations

import gc
import json
import shutil
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from dopsd.cli.main import main as dopsd
from dopsd.core.interrupts import SIGNALS

LEAST = 5.0  # seconds that a training needs at least
REPEAT = 1.0  # seconds between two signals to a training
EVERY = 5.0  # seconds between two copies of a log
STOPPED = 128 + signal.SIGTERM  # exit code of a training that saved and ended at a signal


class Stages:
    """The stages of a run, its file of results, and the time that is left.

    Attributes:
        out: folder of the results.
        seconds: of the whole run.
        took: seconds of each stage that ended well, by name; an int of a stage is an exit code.
    """

    def __init__(self, out: Path, seconds: float) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.out, self.seconds, self.began = out, seconds, time.monotonic()
        self.took: dict[str, float] = {}

    def left(self) -> float:
        """Return the seconds that are left."""
        return self.seconds - (time.monotonic() - self.began)

    def add(self, stage: str, **found: Any) -> None:
        """Add a line to OUT/real_model.jsonl at once, and print it."""
        at = round(time.monotonic() - self.began, 1)
        line = json.dumps({"stage": stage, "at": at} | found, default=str)
        with (self.out / "real_model.jsonl").open("a") as file:
            file.write(line + "\n")
        print(line, flush=True)

    def run(self, name: str, work: Callable[[], Any], least: float = 0) -> Any:
        """Run a stage, and report its seconds, its memory and how it ended.

        Args:
            name: its name in the results.
            work: what it does.
            least: the seconds that it needs; with fewer left it is skipped.

        Returns:
            What `work` returned; None if it was skipped or failed.
        """
        if self.left() < least:
            self.add(name, skipped=f"{self.left():.0f} s are left, and it needs {least:.0f}")
            return None
        start, found, value = time.monotonic(), dict[str, Any](), None
        try:
            value = work()
        except (Exception, SystemExit) as error:  # of any stage: what was found before stays
            traceback.print_exc()
            found["error"] = f"{type(error).__name__}: {error}"[:500]
        seconds = time.monotonic() - start
        if value is not None and (not isinstance(value, int) or value in (0, STOPPED)):
            self.took[name] = seconds
        self.add(name, seconds=round(seconds, 1), **found, **_memory(), result=value)
        return value

    def command(self, name: str, words: list[str], least: float = 0) -> bool:
        """Run a command of dopsd as a stage; return whether it ended well."""
        return self.run(name, lambda: dopsd(words), least) == 0

    def train(self, name: str, words: list[str], seconds: float, log: Path) -> int | None:
        """Train for at most so many seconds; its last update is then saved.

        Args:
            name: the stage's name.
            words: the command of dopsd.
            seconds: after which it is told to stop.
            log: file to which the training's log is copied while it runs.

        Returns:
            The number of updates; None without any.
        """
        if seconds < LEAST:
            self.add(name, skipped=f"{seconds:.0f} s for it are left, and it needs {LEAST:.0f}")
            return None
        with copying("work/train-*/log.jsonl", log), stopped_after(seconds):
            code = self.run(name, lambda: dopsd(words))
        saved = sorted(Path("work").glob("train-*/step-??????"))
        return int(saved[-1].name[5:]) if saved and code in (0, STOPPED) else None


def _memory() -> dict[str, float]:
    """Free what a stage left on the GPU; return its peak in GB."""
    gc.collect()
    if not torch.cuda.is_available():
        return {}
    peak = torch.cuda.max_memory_allocated() / 1e9
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return {"peak_gb": round(peak, 2)}


@contextmanager
def stopped_after(seconds: float) -> Iterator[None]:
    """Send SIGTERM to this process after so many seconds, and again until training ends.

    Another handler than one of training would end the process: it waits until that is replaced.
    """

    def stop(*_: object) -> None:
        if signal.getsignal(signal.SIGTERM) != handlers[signal.SIGTERM]:
            signal.raise_signal(signal.SIGTERM)

    handlers = {number: signal.getsignal(number) for number in (*SIGNALS, signal.SIGALRM)}
    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, REPEAT)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in handlers.items():  # training that was stopped leaves its own
            signal.signal(number, handler)


@contextmanager
def copying(pattern: str, target: Path) -> Iterator[None]:
    """Copy the newest file of this pattern every few seconds, and once more at the end."""
    done, folder = threading.Event(), Path.cwd()

    def copy() -> None:
        is_last = False
        while not is_last:
            is_last = done.wait(EVERY)
            for path in sorted(folder.glob(pattern), key=lambda path: path.stat().st_mtime)[-1:]:
                with suppress(OSError):
                    shutil.copyfile(path, target)

    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
