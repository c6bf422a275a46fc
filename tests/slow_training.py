"""`dopsd train` that takes long, or that something kills, for processes of their own."""

import os
import signal
import time
from pathlib import Path

from forks import command


def slow_update(seconds: float) -> None:
    """Every forward of the third update takes longer; slow-RANK then holds the process's number."""
    from dopsd.models.llm_policy import LlmPolicy
    from dopsd.training.trainer import Trainer

    step, hidden, updates = Trainer.accumulate, LlmPolicy.hidden, []

    def counted(self):
        updates.append(self.update)
        return step(self)

    def slow(self, *inputs):
        if len(updates) == 3:
            _write(f"slow-{_rank()}", str(os.getpid()))
            time.sleep(seconds)
        return hidden(self, *inputs)

    Trainer.accumulate, LlmPolicy.hidden = counted, slow
    command("train")


def slow_sealing(seconds: float) -> None:
    """A checkpoint gets its name slowly; left-RANK says whether it has it by then."""
    from dopsd.training import checkpoint
    from dopsd.training.training_folder import TrainingFolder

    save, seal = TrainingFolder.save, checkpoint.seal

    def slow(half, final):
        time.sleep(seconds)
        seal(half, final)

    def saved(self, *state):
        save(self, *state)
        is_sealed = any(self.scratch.glob("step-??????"))
        _write(f"left-{_rank()}", "sealed" if is_sealed else "early")

    checkpoint.seal, TrainingFolder.save = slow, saved
    command("train")


def killed_after(update: int, rank: str | None = None) -> None:
    """The process, or that rank alone, is killed when it begins the update after that one."""
    from dopsd.training.trainer import Trainer

    step = Trainer.accumulate

    def dying(self):
        if self.update == update and rank in (None, _rank()):
            os.kill(os.getpid(), signal.SIGKILL)
        return step(self)

    Trainer.accumulate = dying
    command("train")


def _rank() -> str:
    return os.environ.get("RANK", "0")


def _write(name: str, text: str) -> None:
    Path(f"{name}.tmp").write_text(text)
    Path(f"{name}.tmp").rename(name)
