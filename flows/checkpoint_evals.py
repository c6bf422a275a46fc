"""Evaluations of checkpoints before DVC collects them: one process for each device."""

from __future__ import annotations

import os
import queue
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from dopsd.core.paths import EVALUATED, RunKey
from flows.running import DOPSD, Log, OutputListener, run

LOOK_EVERY = 0.5  # seconds


class Devices:
    """GPUs handed out one at a time, so that no two evaluations share one; a machine without any
    counts as one.
    """

    def __init__(self, names: list[str]) -> None:
        self.names = names or [""]
        self.free: queue.SimpleQueue[str] = queue.SimpleQueue()
        for name in self.names:
            self.free.put(name)

    @contextmanager
    def one(self) -> Iterator[dict[str, str]]:
        """The environment of a process that sees one device, and starts no others."""
        name = self.free.get()
        try:
            single_process = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
            yield single_process | ({"CUDA_VISIBLE_DEVICES": name} if name else {})
        finally:
            self.free.put(name)


def gpus() -> list[str]:
    """Names for CUDA_VISIBLE_DEVICES of the GPUs that this process may use, without loading
    torch.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name.strip() and name.strip() != "-1"]
    if shutil.which("nvidia-smi") is None:
        return []
    output = subprocess.run(
        ["nvidia-smi", "-L"], capture_output=True, text=True, check=False
    ).stdout
    return [
        str(i)
        for i, line in enumerate(line for line in output.splitlines() if line.startswith("GPU "))
    ]


class CheckpointEvalJob(OutputListener):
    """Checkpoints that one process evaluates one after another, on one device; each has a task that
    waits for it.
    """

    def __init__(self, run_key: RunKey, updates: list[int], devices: Devices, log: Log) -> None:
        self.run_key, self.devices, self.log = run_key, devices, log
        self.done = {update: threading.Event() for update in updates}
        self.lock = threading.Lock()
        self.error: Exception | None = None
        self.process: threading.Thread | None = None

    def wait(self, update: int) -> None:
        """Until this checkpoint is evaluated; the first who waits starts the process, and who tries
        again restarts it.
        """
        with self.lock:
            if self.process is None or not self.process.is_alive():
                self.error = None
                self.process = threading.Thread(target=self._run, daemon=True)
                self.process.start()
        while not self.done[update].wait(LOOK_EVERY):
            if not self.process.is_alive() and not self.done[update].is_set():
                raise self.error or RuntimeError(f"evaluate {update}: its process ended without it")

    def on_line(self, line: str) -> None:
        _, sign, update = line.partition(EVALUATED)
        if sign and int(update) in self.done:
            self.done[int(update)].set()

    def _run(self) -> None:
        missing = [str(update) for update, event in self.done.items() if not event.is_set()]
        try:
            with self.devices.one() as env:
                run(
                    "evaluate",
                    (*DOPSD, "evaluate", *self.run_key.words, "--update", *missing),
                    self.log,
                    env,
                    self,
                )
        except Exception as error:  # who waits raises it
            self.error = error
