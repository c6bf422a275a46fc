"""The folder of one training run: its lock, its log, its checkpoints and its resume."""

from __future__ import annotations

import errno
import fcntl
import json
import shutil
import time
from typing import TYPE_CHECKING, Any, Self

import torch

from dopsd.core.errors import TEMPORARY, DopsdError
from dopsd.core.files import parse_object, write_json
from dopsd.core.metrics import MetricSums
from dopsd.core.paths import LOG
from dopsd.core.progress import log
from dopsd.core.tensor_files import load_tensors, save_tensors
from dopsd.models.adapter_files import ADAPTER, read_adapter
from dopsd.models.lora import adapter_tensors, load_adapter, require_adapter, save_config
from dopsd.training import checkpoint
from dopsd.training.resuming import log_of
from dopsd.training.run_settings import MEMORY

if TYPE_CHECKING:
    from pathlib import Path

    from accelerate import Accelerator

    from dopsd.training.trainer import Trainer

SAVING = 60.0  # seconds that a stopped trainer may take to save before the next one gives up


class RunFolder:
    """Log lines and checkpoints of a Loop in `scratch`."""

    def __init__(self, scratch: Path, accelerator: Accelerator) -> None:
        self.scratch, self.accelerator = scratch, accelerator
        self.is_main = accelerator.is_main_process
        scratch.mkdir(parents=True, exist_ok=True)
        self.lines: list[
            str
        ] = []  # of the log, which every checkpoint has a copy of: the one on the disk may change

    def __enter__(self) -> Self:
        """Hold the folder: two trainers in one, after a kill that left one of them alive, would mix
        their files.
        """
        self.lock = (self.scratch / "lock").open("w")
        if self.is_main:
            self._wait_for_lock()
            checkpoint.finish_replacements(self.scratch)
        return self

    def _wait_for_lock(self) -> None:
        """Wait a while for the lock: a trainer that was asked to stop is still saving."""
        deadline, is_announced = time.monotonic() + SAVING, False
        while True:
            try:
                return fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise DopsdError(
                        f"train: another process is training in {self.scratch}; wait for it or"
                        " stop it",
                        TEMPORARY,
                    ) from error
            if not is_announced:
                log(
                    f"train: another process is training in {self.scratch}; waiting up to"
                    f" {SAVING:.0f} s for it to end"
                )
            is_announced = True
            time.sleep(0.2)

    def __exit__(self, *_: object) -> None:
        self.lock.close()

    def log(self, update: int, figures: dict[str, float], seconds: float) -> None:
        """Append one update's figures; lines under `time/` stay out of what DVC compares."""
        if not self.is_main:
            return
        line = json.dumps(
            {"update": update, **figures, "time/update_seconds": round(seconds, 3)}, sort_keys=True
        )
        self.lines.append(line + "\n")
        with (self.scratch / LOG).open("a") as out:
            out.write(self.lines[-1])

    def save(self, loop: Trainer) -> None:
        """Write step-N; a full disk leaves the checkpoints that were there."""
        tmp = self.scratch / f"step-{loop.update:06d}.tmp"
        try:
            if self.is_main:
                shutil.rmtree(tmp, ignore_errors=True)
                tmp.mkdir()
            self.accelerator.wait_for_everyone()
            self._write(loop, tmp)
            self.accelerator.wait_for_everyone()
            if self.is_main:
                checkpoint.seal(tmp, tmp.with_suffix(""))
                checkpoint.prune(self.scratch, loop.update)
            # a process that ended earlier would have the others killed
            self.accelerator.wait_for_everyone()
        except OSError as error:
            shutil.rmtree(tmp, ignore_errors=True)
            if error.errno != errno.ENOSPC:
                raise
            raise DopsdError(
                f"train: no space left on the disk for a checkpoint in {self.scratch}; those before"
                f" update {loop.update} are whole. Free some space (`dopsd clean`), then run the"
                " same command",
                TEMPORARY,
            ) from error

    def _write(self, loop: Trainer, tmp: Path) -> None:
        rank = self.accelerator.process_index
        rank_tensors = checkpoint.pack_updates(loop.waiting) | {"rng": torch.get_rng_state()}
        micro_batches = loop.micro_batches
        rank_tensors["micro_batch"] = torch.tensor(
            [micro_batches.size, micro_batches.is_halved]
        )  # measured again it might differ, and round otherwise
        if torch.cuda.is_available():
            rank_tensors["cuda_rng"] = torch.cuda.get_rng_state()
        save_tensors(rank_tensors, tmp / f"batches.{rank}.safetensors")
        if not self.is_main:
            return
        adapted = require_adapter(loop.policy.adapted)
        save_tensors(adapter_tensors(adapted), tmp / ADAPTER)
        save_config(adapted, tmp)
        state = {f"ema/{name}": tensor for name, tensor in loop.policy.ema.items()}
        for name, p in loop.parameters.items():
            state |= {f"{kind}/{name}": value for kind, value in loop.optimizer.state[p].items()}
        save_tensors(state, tmp / "trainer.safetensors")
        (tmp / LOG).write_text("".join(self.lines))
        counts = {"update": loop.update, "counters": loop.counters, "waiting": len(loop.waiting)}
        counts |= {"memory": {name: vars(loop.settings)[name] for name in MEMORY}}
        counts |= {"empty_in_a_row": loop.empty_in_a_row, "spent": loop.spent}
        counts |= {"scores": loop.detector.scores, "squares": loop.detector.squares}
        write_json(
            tmp / "state.json",
            counts | {"gathered": loop.gathered, "ranks": self.accelerator.num_processes},
        )

    def resume(self, loop: Trainer) -> None:
        """Bring the loop to the newest whole checkpoint, and the log with it."""
        newest = checkpoint.newest_resumable(self.scratch, loop.settings.checkpoint_every)
        if newest:
            state = parse_object(
                (newest.path / "state.json").read_bytes(), newest.path / "state.json"
            )
            ranks = state.get("ranks")
            if ranks != self.accelerator.num_processes:
                raise DopsdError(
                    f"train: {newest.path} was made by {ranks} ranks, this run has"
                    f" {self.accelerator.num_processes}; use as many, or remove the folder to start"
                    " anew"
                )
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
                    f"train: {newest.path}: cannot be continued ({reason}); remove the folder to"
                    " use an older one"
                ) from error
            log(f"train: continuing after update {loop.update} from {newest.path}")
        elif checkpoint.folders(self.scratch) and self.is_main:
            log(f"train: no checkpoint of {self.scratch} can be continued; starting at zero")
        if self.is_main:
            self._restore_log(loop.update, log_of(newest.path) if newest else None)

    def _restore(self, loop: Trainer, folder: Path, state: dict[str, Any]) -> None:
        load_adapter(require_adapter(loop.policy.adapted), read_adapter(folder), folder)
        device = loop.policy.device
        tensors = {k: v.to(device) for k, v in load_tensors(folder / "trainer.safetensors").items()}
        for name, p in loop.parameters.items():
            kinds = ("step", "exp_avg", "exp_avg_sq")
            loop.optimizer.state[p] = {kind: tensors[f"{kind}/{name}"] for kind in kinds}
        loop.policy.ema = {
            k.removeprefix("ema/"): v for k, v in tensors.items() if k.startswith("ema/")
        }
        if state["update"] != int(folder.name[5:]):
            raise ValueError(f"state.json is of update {state['update']!r}")
        rank_tensors = load_tensors(
            folder / f"batches.{self.accelerator.process_index}.safetensors"
        )
        torch.set_rng_state(rank_tensors.pop("rng"))
        size, is_halved = rank_tensors.pop("micro_batch").tolist()
        memory_settings = {name: vars(loop.settings)[name] for name in MEMORY}
        if state.get("memory", memory_settings) == memory_settings:
            loop.micro_batches.size, loop.micro_batches.is_halved = size, bool(is_halved)
        if "cuda_rng" in rank_tensors:
            torch.cuda.set_rng_state(rank_tensors.pop("cuda_rng"))
        waiting = checkpoint.unpack_updates(rank_tensors, state["waiting"])
        loop.waiting = [[batch.to(device) for batch in batches] for batches in waiting]
        loop.update, loop.counters = state["update"], state["counters"]
        loop.empty_in_a_row, loop.spent = state["empty_in_a_row"], state["spent"]
        loop.detector.scores, loop.detector.squares = state["scores"], state["squares"]
        loop.gathered = MetricSums(
            {name: (total, count) for name, (total, count) in state["gathered"].items()}
        )

    def _restore_log(self, update: int, saved_log: Path | None) -> None:
        """The log as it was at the checkpoint: later lines, half-written ones included, will be
        made again.
        """
        lines = (
            saved_log.read_text(errors="replace").splitlines()
            if saved_log and saved_log.exists()
            else []
        )
        self.lines = [line + "\n" for line in lines if _update_of(line) <= update]
        path = self.scratch / LOG
        tmp = path.with_suffix(".tmp")
        tmp.write_text("".join(self.lines))
        tmp.rename(path)


def _update_of(line: str) -> float:
    try:
        return float(json.loads(line)["update"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return float("inf")
