"""`dopsd launch --at-once N repro`: runs of the matrix side by side, each on GPUs of its own.

DVC makes one stage at a time. So the stages' commands run without it first, several runs at once:
their checkpoints and answers are in work/, by what decides them. Then `dopsd repro` runs, whose
stages find these there. It computes little: a test's trajectory, and the tasks of evaluate.watch.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType

from dopsd.config.loading import load_params
from dopsd.config.params import Params
from dopsd.core.errors import Code
from dopsd.core.extras import require
from dopsd.core.files import WORK
from dopsd.core.interrupts import handling
from dopsd.core.paths import RunKey
from dopsd.core.processes import LAUNCHER
from dopsd.core.progress import log
from dopsd.distributed.nodes import gpus
from dopsd.pipeline.dvc import command
from dopsd.pipeline.dvc.disk_room import missing_runs, require_room
from dopsd.pipeline.dvc.previous import keep
from dopsd.pipeline.dvc.writer_lock import WriterLock
from dopsd.pipeline.recipes import PARAMS
from dopsd.pipeline.results.summary import summary

LOGS = WORK / "launch"
SHARED = ("prepare", "pretrain", "adapt", "evaluate_base")  # stages that runs of a task share
TOLD_EVERY = 60.0  # seconds between two lines about each run
LOOK_EVERY = 0.5


def _stages_of(params: Params, key: RunKey) -> Iterator[tuple[str, ...]]:
    """Return the commands of a run after `dopsd`: all that computes for long."""
    yield from ((name, *key.words) for name in ("train", "evaluate", "select"))
    yield from (("test", *key.words, "--point", name) for name in params.test_order)


@dataclass
class Running:
    """A run at work: its devices, its log, the stage in progress and those after it."""

    key: RunKey
    devices: list[str]
    waiting: list[tuple[str, ...]]
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def go_on(self) -> bool:
        """Start the next stage if the last one has ended well; return whether one is at work."""
        status = self.process.poll() if self.process else 0
        if status is None:
            return True
        if status or not self.waiting:
            return False
        env = os.environ | {LAUNCHER: str(os.getpid())}  # they save if this process is killed
        if any(self.devices):
            cores = (os.cpu_count() or 1) // max(1, len(gpus()))
            env["CUDA_VISIBLE_DEVICES"] = ",".join(self.devices)
            env.setdefault("OMP_NUM_THREADS", str(max(1, cores)))
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "dopsd", *self.waiting.pop(0)],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        return True

    def stop(self) -> None:
        """Ask it to save and end."""
        self.waiting.clear()
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)

    @property
    def last_line(self) -> str:
        """What its log said last."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return next((line for line in reversed(lines) if line.strip()), "begins")


@dataclass
class SideBySide:
    """Runs that begin while devices are free."""

    params: Params
    free: list[list[str]]  # the devices of each run that could begin now
    running: list[Running] = field(default_factory=list)
    failed: list[RunKey] = field(default_factory=list)
    stopped_by: int = 0

    def run(self, keys: list[RunKey]) -> None:
        """Make these runs, the first ones first, and wait until none is at work."""
        LOGS.mkdir(parents=True, exist_ok=True)
        waiting, told = list(keys), time.monotonic()
        lost = partial(self._note, signal.SIGTERM)
        params_file = PARAMS.read_bytes()
        with WriterLock("launch", lost=lost), handling(self._note):
            try:
                while (self.running or waiting) and not self.stopped_by:
                    if PARAMS.read_bytes() != params_file:
                        raise Code.CHANGED_DURING_STAGE.error(
                            f"launch: {PARAMS} changed while its runs were made; put it back, or"
                            " start again with the new settings"
                        )
                    while waiting and self.free:
                        self._begin(waiting.pop(0))
                    for run in [run for run in self.running if not run.go_on()]:
                        self._end(run)
                    time.sleep(LOOK_EVERY)
                    if time.monotonic() - told >= TOLD_EVERY:
                        told = time.monotonic()
                        for run in self.running:
                            log(f"launch: {run.key}: {run.last_line}")
            finally:  # after a signal or an error
                for run in self.running:
                    run.stop()
                for run in self.running:
                    if run.process:
                        run.process.wait()

    def _begin(self, key: RunKey) -> None:
        devices = self.free.pop(0)
        place = f"GPU {','.join(devices)}" if any(devices) else "the CPU"
        run = Running(key, devices, [*_stages_of(self.params, key)], LOGS / f"{key.stage}.log")
        log(f"launch: {key}: begins on {place}; its log is {run.log}")
        if replaced := keep(key):
            log(f"launch: {replaced}")
            shutil.rmtree(key.folder / "test")  # of the results that were there; they are kept
        self.running.append(run)

    def _end(self, run: Running) -> None:
        self.running.remove(run)
        self.free.append(run.devices)
        if run.process and (status := run.process.returncode):
            self.failed.append(run.key)
            log(f"launch: {run.key}: ended with {status}: {run.last_line}")
        else:
            log(f"launch: {run.key}: is trained and tested")

    def _note(self, number: int, _: FrameType | None = None) -> None:
        """Note a signal, or that another writer took over."""
        self.stopped_by = number


def devices_of(params: Params, count: int) -> list[list[str]]:
    """Return the GPUs of each of `count` runs; empty names without GPUs."""
    each, known = params.launch.processes, gpus()
    if known and len(known) < count * each:
        raise Code.USAGE.error(
            f"launch: --at-once {count}: {count} runs of {each} processes need {count * each} GPUs,"
            f" and this machine shows {len(known)}"
        )
    names = known or [""] * count * each
    return [names[first : first + each] for first in range(0, count * each, each)]


def reproduce(count: int) -> int:
    """Make the missing runs of the matrix side by side, then do as `dopsd repro`."""
    require("launch", "dvc")
    params = load_params()
    side_by_side = SideBySide(params, devices_of(params, count))
    require_room(params, len(params.runs))  # the last step removes what checkpoints.keep does not
    stages = command.ask_dvc("stage", "list", "--name-only").stdout.split()
    if status := command.run(["repro", *(s for s in stages if s.partition("@")[0] in SHARED)]):
        return status
    missing = {run.key for run in missing_runs(params)}
    keys = [run.key for run in params.runs if run.key in missing or not run.key.is_tested]
    side_by_side.run(keys)
    if number := side_by_side.stopped_by:
        raise Code.INTERRUPTED.error(
            f"launch: {signal.Signals(number).name}: all runs have saved; the same command"
            " continues",
            128 + number,
        )
    if failed := side_by_side.failed:
        if good := [f"report@{run.key.stage}" for run in params.runs if run.key not in failed]:
            command.run(["repro", *good])
        names = ", ".join(map(str, failed))
        log(f"launch: {names}: failed; their logs are in {LOGS}, and the same command continues")
        return 1
    if not (status := command.run(["repro"])):
        print(summary(params))
    return status
