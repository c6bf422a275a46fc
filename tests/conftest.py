"""Fixtures: a policy of random tokens, a tiny trained-shape model, and a project folder to run stages in."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from fakes import FakePolicy

from dopsd.distributed.launch import LAUNCHER

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch.set_num_threads(1)
signal.signal(
    signal.SIGINT, signal.default_int_handler
)  # a suite that a shell started with `&`, and its commands, would ignore it

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def nothing_of_a_test_reaches_the_next() -> Iterator[None]:
    """Take back signal handlers, which commands leave where they end, and a launcher whose end would send a SIGTERM."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    os.environ.pop(LAUNCHER, None)


@pytest.fixture
def fake_policy() -> FakePolicy:
    return FakePolicy()


def small_params(**changes: object) -> dict:
    """params.yaml shrunk until a whole run takes seconds; changes are dotted keys with __ for the dot."""
    raw = yaml.safe_load((ROOT / "params.yaml").read_text())
    raw["data"]["sudoku"] |= {"train": 64, "validation": 12, "test": 12}
    raw["pretrain"] |= {
        "d_model": 32,
        "n_layers": 2,
        "n_heads": 2,
        "mlp_hidden_size": 64,
        "updates": 200,
        "batch_size": 16,
    }
    raw["method"]["d_opsd"] |= {"attempts": 3, "keep_threshold": 0.0, "updates_per_trajectory": 3}
    raw["method"]["rft"] |= {"attempts": 2, "keep_threshold": 0.0}
    raw["method"]["vrpo"] |= {"attempts": 3, "draws": 2}
    raw["method"]["diffu_grpo"] |= {"group_size": 2, "iterations": 2}
    for method in raw["method"].values():  # sizes are those of section train below
        method["train"] |= {
            key: None
            for key in ("updates", "prompts_per_collect", "lora")
            if key in method["train"]
        }
    raw["train"] |= {"updates": 4, "prompts_per_collect": 2, "checkpoint_every": 2}
    raw["train"]["lora"] |= {"r": 4, "alpha": 4}
    raw["evaluate"]["bootstrap"] = 100
    raw["tracking"]["enabled"] = False
    for key, value in changes.items():
        *path, last = key.split("__")
        section = raw
        for part in path:
            section = section[part]
        section[last] = value
    return raw


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data and a base, made once by the stages themselves."""
    from dopsd.cli.main import main

    folder = tmp_path_factory.mktemp("prepared")
    before = Path.cwd()
    os.chdir(folder)
    try:
        Path("params.yaml").write_text(yaml.safe_dump(small_params()))
        assert main(["prepare"]) == 0
        assert main(["pretrain"]) == 0
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def project(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the prepared folder, as the working directory."""
    shutil.copytree(prepared, tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return tmp_path / "project"


def write_params(**changes: object) -> None:
    Path("params.yaml").write_text(yaml.safe_dump(small_params(**changes)))


def stop_in(monkeypatch: pytest.MonkeyPatch, update: int) -> None:
    """SIGINT in an update, which is dropped."""
    from dopsd.training.trainer import Trainer

    step, left = Trainer._step, [signal.SIGINT]

    def interrupted(self: Any, batches: list) -> object:
        if self.update + 1 == update and left:
            os.kill(os.getpid(), left.pop())
        return step(self, batches)

    monkeypatch.setattr(Trainer, "_step", interrupted)
