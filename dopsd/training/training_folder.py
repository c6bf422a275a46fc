"""The folder of a training run: its lock, log and checkpoints, and the outputs made of them."""

from __future__ import annotations

import errno
import fcntl
import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch

from dopsd.core.errors import TEMPORARY, Code
from dopsd.core.files import parse_object, write_atomically, write_json
from dopsd.core.paths import LOG
from dopsd.core.progress import log
from dopsd.core.tensor_files import load_tensors, save_tensors
from dopsd.training import checkpoint
from dopsd.training.trainer_state import TrainerState

if TYPE_CHECKING:
    from accelerate import Accelerator

    from dopsd.training.remote_checkpoints import RemoteCopies

# what reading a checkpoint of other code raises
UNREADABLE = (KeyError, ValueError, TypeError, IndexError, AttributeError, RuntimeError)
SAVING = 60.0  # seconds to wait for a stopped trainer that is still saving


class TrainingFolder:
    """The log and the checkpoints of a `Trainer` in the folder `scratch`.

    Enter it as a context, which locks the folder for one trainer.
    """

    def __init__(self, scratch: Path, accelerator: Accelerator) -> None:
        self.scratch, self.accelerator = scratch, accelerator
        self.is_main = accelerator.is_main_process
        scratch.mkdir(parents=True, exist_ok=True)
        self.rows = RunLog(scratch, self.is_main)
        self.copies: RemoteCopies | None = None

    def __enter__(self) -> Self:
        """Lock the folder: two trainers, one of them left over by a kill, would mix their files."""
        self.lock = (self.scratch / "lock").open("w", encoding="utf-8")
        if self.is_main:
            self._wait_for_lock()
            checkpoint.finish_replacements(self.scratch)
        return self

    def _wait_for_lock(self) -> None:
        """Wait up to SAVING seconds for the lock; a stopped trainer may still be saving."""
        deadline, is_announced = time.monotonic() + SAVING, False
        while True:
            try:
                return fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise Code.RUN_IN_USE.error(
                        f"train: another process is training in {self.scratch}; wait for that"
                        " process or stop it",
                        TEMPORARY,
                    ) from error
            if not is_announced:
                log(
                    f"train: another process is training in {self.scratch}; waiting up to"
                    f" {SAVING:.0f} s for that process to end"
                )
            is_announced = True
            time.sleep(0.2)

    def __exit__(self, *_: object) -> None:
        self.lock.close()

    def save(self, state: TrainerState, save_weights: Callable[[Path], None]) -> None:
        """Write the checkpoint step-N of the last update; every rank must call this.

        Raises:
            DopsdError: if the disk is full; the earlier checkpoints stay intact.
        """
        tmp = self.scratch / f"step-{state.update:06d}.tmp"
        with self._space(state.update, tmp):
            if self.is_main:
                shutil.rmtree(tmp, ignore_errors=True)
                tmp.mkdir()
            self.accelerator.wait_for_everyone()
            save_tensors(state.rank_tensors(), tmp / _batches(self.accelerator.process_index))
            if self.is_main:
                save_weights(tmp)
                save_tensors(state.tensors, tmp / "trainer.safetensors")
                (tmp / LOG).write_text(self.rows.text, encoding="utf-8")
                ranks = {"ranks": self.accelerator.num_processes}
                write_json(tmp / "state.json", state.to_dict() | ranks)
            self.accelerator.wait_for_everyone()
            if self.is_main:
                self._seal(state.update, tmp)
            # torchrun kills the others when one process ends early
            self.accelerator.wait_for_everyone()

    def _seal(self, update: int, tmp: Path) -> None:
        checkpoint.seal(tmp, tmp.with_suffix(""))
        checkpoint.prune(self.scratch, update)
        if self.copies:
            self.copies.add(tmp.with_suffix(""))

    @contextmanager
    def _space(self, update: int, tmp: Path) -> Iterator[None]:
        """Turn a full disk into an error that says what is left."""
        try:
            yield
        except OSError as error:
            shutil.rmtree(tmp, ignore_errors=True)
            if error.errno != errno.ENOSPC:
                raise
            raise Code.DISK_FULL.error(
                f"train: no space left on the disk for a checkpoint in {self.scratch}; those before"
                f" update {update} are intact. Free some space (`dopsd clean`), then run the same"
                " command",
                TEMPORARY,
            ) from error

    def resume(self, load_state: Callable[[TrainerState, Path], None], every: int) -> None:
        """Restore the trainer and the log from the newest resumable checkpoint, if there is one.

        Args:
            load_state: restores the trainer from a state and a folder with weights.
            every: train.checkpoint_every.
        """
        newest = checkpoint.newest_resumable(self.scratch, every)
        if newest:
            state_file = newest.path / "state.json"
            values = parse_object(state_file.read_bytes(), state_file)
            try:
                load_state(self._read(newest.path, values), newest.path)
            except torch.OutOfMemoryError:
                raise
            except UNREADABLE as error:  # written by other code
                reason = f"{type(error).__name__}: {error}"
                raise Code.RESUME.error(
                    f"train: {newest.path}: cannot be resumed ({reason}); remove the folder to"
                    " resume from an older one"
                ) from error
            before, now = values["ranks"], self.accelerator.num_processes
            change = "" if before == now else f" with {now} processes, after {before}"
            log(f"train: continuing after update {newest.update} from {newest.path}{change}")
        elif checkpoint.folders(self.scratch) and self.is_main:
            log(f"train: no checkpoint in {self.scratch} can be resumed; starting from update 0")
        self.rows.restore(
            newest.update if newest else 0, checkpoint.log_of(newest.path) if newest else None
        )

    def _read(self, folder: Path, values: dict[str, Any]) -> TrainerState:
        """Return the state that a checkpoint holds for this process."""
        if values["update"] != checkpoint.update_of(folder):
            raise ValueError(f"state.json is of update {values['update']!r}")
        tensors = load_tensors(folder / "trainer.safetensors")
        ranks = [load_tensors(folder / _batches(number)) for number in range(values["ranks"])]
        process = self.accelerator.process_index, self.accelerator.num_processes
        return TrainerState.from_dict(values, tensors, ranks, *process)


def _batches(rank: int) -> str:
    return f"batches.{rank}.safetensors"


class RunLog:
    """The log's lines, in every process; one process writes them to the folder.

    Every checkpoint gets a copy of the lines, as the file on disk may change.
    """

    def __init__(self, scratch: Path, writes: bool) -> None:
        self.path, self.writes = scratch / LOG, writes
        self.lines: list[str] = []

    @property
    def text(self) -> str:
        """All lines."""
        return "".join(self.lines)

    def add(self, row: dict[str, float]) -> None:
        """Append one update.

        Args:
            row: the number of finished updates, and metrics by name; DVC does not compare those
                under `time/`.
        """
        self.lines.append(json.dumps(row, sort_keys=True) + "\n")
        if self.writes:
            with self.path.open("a", encoding="utf-8") as out:
                out.write(self.lines[-1])

    def restore(self, update: int, saved_log: Path | None) -> None:
        """Restore the log as it was at the checkpoint; later lines will be written again."""
        lines = (
            saved_log.read_text(errors="replace", encoding="utf-8").splitlines()
            if saved_log and saved_log.exists()
            else []
        )
        self.lines = [line + "\n" for line in lines if _update_of(line) <= update]
        if self.writes:
            write_atomically(self.path, self.text)


def _update_of(line: str) -> float:
    try:
        return float(json.loads(line)["update"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return float("inf")
