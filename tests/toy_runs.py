"""Training and evaluation of the toy project (fixture `project`)."""

from collections.abc import Callable
from pathlib import Path

import pytest

from dopsd.cli.main import main
from dopsd.config.loading import load_params
from dopsd.core.fingerprint import sha256
from dopsd.evaluation.evaluator import Evaluator
from dopsd.evaluation.generate import Trials
from dopsd.models.adapter_files import ADAPTER
from dopsd.rollout.config import EvalProtocol
from dopsd.training.trainer import Trainer

OUT = Path("runs/sudoku/d_opsd/0/train")


def train() -> int:
    return main(["train"])


def adapter_digests() -> dict[str, str]:
    return {path.parent.name: sha256(path) for path in sorted(OUT.glob("*/" + ADAPTER))}


def die_at(monkeypatch: pytest.MonkeyPatch, update: int) -> None:
    """Lose the process between two updates, as a SIGKILL would."""
    step = Trainer.accumulate

    def dying(self: Trainer) -> object:
        if self.update == update:
            raise SystemExit(9)
        return step(self)

    monkeypatch.setattr(Trainer, "accumulate", dying)


def evaluator(attempts: int = 1) -> tuple[Evaluator, EvalProtocol]:
    params = load_params()
    protocol = params.evaluate.protocols["greedy"].model_copy(update={"batch_size": 5})
    return Evaluator(params.evaluation("sudoku"), "test", Trials(attempts)), protocol


def assert_continues_to_the_same_bytes(
    monkeypatch: pytest.MonkeyPatch, digests: Callable[[], dict[str, str]], killed_at: int = 3
) -> dict[str, str]:
    """Train once to the end, and once killed after so many updates and begun again."""
    assert train() == 0
    whole = digests()
    for path in Path("work").glob("train-*"):
        path.rename(path.with_name(f"other-{path.name}"))
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        die_at(patch, killed_at)
        train()
    assert train() == 0
    assert digests() == whole
    return whole
