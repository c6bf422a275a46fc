"""The folder of a training run: lock it, write log and checkpoints, and resume from them."""

from __future__ import annotations

import errno
import fcntl
import shutil
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

import torch

from dopsd.core.error_codes import Code
from dopsd.core.errors import TEMPORARY, DopsdError
from dopsd.core.files import parse_object, write_json
from dopsd.core.metrics import MetricSums
from dopsd.core.paths import LOG
from dopsd.core.progress import log
from dopsd.core.tensor_files import load_tensors, save_tensors
from dopsd.training import checkpoint, rank_files
from dopsd.training.optim import restore_moments
from dopsd.training.resuming import log_of
from dopsd.training.run_log import RunLog
from dopsd.training.run_settings import MEMORY

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from accelerate import Accelerator

    from dopsd.training.remote_copies import RemoteCopies
    from dopsd.training.trainer import Trainer

SAVING = 60.0  # seconds to wait for a stopped trainer that is still saving


class RunFolder:
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
                    raise DopsdError(
                        f"train: another process is training in {self.scratch}; wait for that"
                        " process or stop it",
                        TEMPORARY,
                        code=Code.RUN_IN_USE,
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

    def log(self, update: int, figures: dict[str, float], seconds: float) -> None:
        """Append one update to the log, as RunLog.add."""
        self.rows.add(update, figures, seconds)

    def save(self, loop: Trainer) -> None:
        """Write the checkpoint step-N of the last update; every rank must call this.

        Raises:
            DopsdError: if the disk is full; the earlier checkpoints stay intact.
        """
        tmp = self._new_folder(loop)
        with self._space(loop, tmp):
            if self.is_main:
                shutil.rmtree(tmp, ignore_errors=True)
                tmp.mkdir()
            self.accelerator.wait_for_everyone()
            rank_files.write_own(loop, tmp)
            if self.is_main:
                self._write(loop, tmp)
            self.accelerator.wait_for_everyone()
            if self.is_main:
                self._seal(loop, tmp)
            # torchrun kills the others when one process ends early
            self.accelerator.wait_for_everyone()

    def _new_folder(self, loop: Trainer) -> Path:
        return self.scratch / f"step-{loop.update:06d}.tmp"

    def _seal(self, loop: Trainer, tmp: Path) -> None:
        checkpoint.seal(tmp, tmp.with_suffix(""))
        checkpoint.prune(self.scratch, loop.update)
        if self.copies:
            self.copies.add(tmp.with_suffix(""))

    @contextmanager
    def _space(self, loop: Trainer, tmp: Path) -> Iterator[None]:
        """Turn a full disk into an error that says what is left."""
        try:
            yield
        except OSError as error:
            shutil.rmtree(tmp, ignore_errors=True)
            if error.errno != errno.ENOSPC:
                raise
            raise DopsdError(
                f"train: no space left on the disk for a checkpoint in {self.scratch}; those before"
                f" update {loop.update} are intact. Free some space (`dopsd clean`), then run the"
                " same command",
                TEMPORARY,
                code=Code.DISK_FULL,
            ) from error

    def _write(self, loop: Trainer, tmp: Path) -> None:
        loop.policy.save(tmp)
        state = {f"ema/{name}": tensor for name, tensor in loop.policy.ema.items()}
        for name, p in loop.parameters.items():
            state |= {f"{kind}/{name}": value for kind, value in loop.optimizer.state[p].items()}
        save_tensors(state, tmp / "trainer.safetensors")
        (tmp / LOG).write_text(self.rows.text, encoding="utf-8")
        counts = {"update": loop.update, "counters": loop.counters, "waiting": len(loop.waiting)}
        counts |= {"memory": {name: vars(loop.settings)[name] for name in MEMORY}}
        counts |= {"empty_in_a_row": loop.empty_in_a_row, "spent": loop.spent}
        counts["cpu_spent"] = loop.cpu_spent
        counts |= {"scores": loop.detector.scores, "squares": loop.detector.squares}
        write_json(
            tmp / "state.json",
            counts | {"gathered": loop.gathered, "ranks": self.accelerator.num_processes},
        )

    def resume(self, loop: Trainer) -> None:
        """Restore the trainer and the log from the newest resumable checkpoint, if there is one.

        Raises:
            DopsdError: if the checkpoint cannot be restored.
        """
        newest = checkpoint.newest_resumable(self.scratch, loop.settings.checkpoint_every)
        if newest:
            state_file = newest.path / "state.json"
            state = parse_object(state_file.read_bytes(), state_file)
            try:
                self._restore(loop, newest.path, state)
            except torch.OutOfMemoryError:
                raise
            except (
                KeyError,
                ValueError,
                TypeError,
                IndexError,
                AttributeError,
                RuntimeError,
            ) as error:  # written by other code
                reason = f"{type(error).__name__}: {error}"
                raise DopsdError(
                    f"train: {newest.path}: cannot be resumed ({reason}); remove the folder to"
                    " resume from an older one",
                    code=Code.RESUME,
                ) from error
            change = self._change(state)
            log(f"train: continuing after update {loop.update} from {newest.path}{change}")
        elif checkpoint.folders(self.scratch) and self.is_main:
            log(f"train: no checkpoint in {self.scratch} can be resumed; starting from update 0")
        self.rows.restore(loop.update, log_of(newest.path) if newest else None)

    def _change(self, state: dict[str, Any]) -> str:
        """Return the words about another number of processes than the checkpoint's."""
        before, now = state["ranks"], self.accelerator.num_processes
        return "" if before == now else f" with {now} processes, after {before}"

    def _restore(self, loop: Trainer, folder: Path, state: dict[str, Any]) -> None:
        loop.policy.load(folder)
        device, tensors = loop.policy.device, load_tensors(folder / "trainer.safetensors")
        restore_moments(loop.optimizer, loop.parameters, tensors)
        loop.policy.ema = {
            k.removeprefix("ema/"): v.to(device) for k, v in tensors.items() if k.startswith("ema/")
        }
        if state["update"] != int(folder.name[5:]):
            raise ValueError(f"state.json is of update {state['update']!r}")
        rank_files.restore(loop, folder, state)
        loop.update, loop.counters = state["update"], state["counters"]
        loop.empty_in_a_row, loop.spent = state["empty_in_a_row"], state["spent"]
        loop.cpu_spent = state["cpu_spent"]
        loop.detector.scores, loop.detector.squares = state["scores"], state["squares"]
        loop.gathered = MetricSums(
            {name: (total, count) for name, (total, count) in state["gathered"].items()}
        )
