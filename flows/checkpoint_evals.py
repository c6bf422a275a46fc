"""Evaluate checkpoints before DVC collects the results: one process per device."""

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from dopsd.core.paths import EVALUATED, RunKey
from flows.running import DOPSD, Log, OutputListener, run

LOOK_EVERY = 0.5  # seconds


class Devices:
    """GPUs, handed out so that no two evaluations share one; a machine without GPUs is one device.

    Args:
        names: Names for CUDA_VISIBLE_DEVICES.
    """

    def __init__(self, names: list[str]) -> None:
        self.names = names or [""]
        self.free: queue.SimpleQueue[str] = queue.SimpleQueue()
        for name in self.names:
            self.free.put(name)

    @contextmanager
    def one(self) -> Iterator[dict[str, str]]:
        """Wait for a device, and yield the environment of a single process that sees only it."""
        name = self.free.get()
        try:
            single_process = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
            yield single_process | ({"CUDA_VISIBLE_DEVICES": name} if name else {})
        finally:
            self.free.put(name)


class CheckpointEvalJob(OutputListener):
    """Checkpoints that one process evaluates in turn on one device; a task waits for each."""

    def __init__(self, run_key: RunKey, updates: list[int], devices: Devices, log: Log) -> None:
        self.run_key, self.devices, self.log = run_key, devices, log
        self.done = {update: threading.Event() for update in updates}
        self.accuracies: dict[int, str] = {}
        self.lock = threading.Lock()
        self.error: Exception | None = None
        self.process: threading.Thread | None = None

    def wait(self, update: int) -> str:
        """Wait until a checkpoint is evaluated, and return its accuracy as text.

        The first caller starts the process; a caller that retries starts it again.

        Raises:
            Exception: the error of the process, if it ended without this checkpoint.
        """
        with self.lock:
            if self.process is None or not self.process.is_alive():
                self.error = None
                self.process = threading.Thread(target=self._run, daemon=True)
                self.process.start()
        while not self.done[update].wait(LOOK_EVERY):
            if not self.process.is_alive() and not self.done[update].is_set():
                raise self.error or RuntimeError(
                    f"evaluate: process ended before checkpoint {update}"
                )
        return self.accuracies[update]

    def on_line(self, line: str) -> None:
        """Note which checkpoint a line of the process reports as done, and its accuracy."""
        _, sign, outcome = line.partition(EVALUATED)
        update, _, accuracy = outcome.partition(": ")
        if sign and int(update) in self.done:
            self.accuracies[int(update)] = accuracy
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
        except Exception as error:  # wait() raises it
            self.error = error
