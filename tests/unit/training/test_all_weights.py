"""Training without an adapter: every weight learns, the reference stays, files hold all weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from conftest import STAGES, write_params
from safetensors.torch import load_file
from toy_runs import assert_continues_to_the_same_bytes
from toys import save_toy
from transformers import AutoModelForMaskedLM

from dopsd.cli.main import main
from dopsd.config.loading import load_params
from dopsd.core.errors import DopsdError
from dopsd.core.fingerprint import sha256
from dopsd.core.tables import read_table
from dopsd.distributed.process_group import all_processes
from dopsd.evaluation.evaluator import Evaluator
from dopsd.models import checkpoint_files
from dopsd.models.checkpoint_files import INDEX, file_tensors
from dopsd.models.config import ModelConfig
from dopsd.models.llm_policy import LlmPolicy, load_policy
from dopsd.training.run_identity import identify
from dopsd.training.run_settings import RunSettings
from dopsd.training.trainer import Trainer

IDS = torch.arange(2, 20).reshape(2, 9)
OUT = Path("runs/sudoku/d_opsd/0/train")
ALL = {"train__weights": "all", "train__learning_rate": 0.01}


@torch.no_grad()
def logits(policy: LlmPolicy) -> torch.Tensor:
    return policy.head(policy.hidden(IDS, None))


def run(method: str = "d_opsd") -> RunSettings:
    return load_params().run("sudoku", method, 0)


def digests(folder: Path = OUT) -> dict[str, str]:
    return {str(p.relative_to(folder)): sha256(p) for p in sorted(folder.rglob("*.*"))}


def two_updates(loop: Trainer) -> None:
    while loop.update < 2:
        if not loop.waiting:
            loop.collect()
        if loop.waiting:
            loop.step(loop.accumulate())


def test_every_weight_learns_and_the_reference_does_not_move(project):
    write_params(**ALL)
    loop = Trainer(run(), all_processes())
    base = logits(loop.policy)
    before = {name: p.detach().clone() for name, p in loop.parameters.items()}
    assert before.keys() == dict(loop.policy.core.named_parameters()).keys()
    two_updates(loop)
    assert [name for name, p in loop.parameters.items() if torch.equal(p, before[name])] == []
    assert not torch.equal(logits(loop.policy), base)
    for context in (loop.policy.reference, loop.policy.teacher):
        with context():
            assert torch.equal(logits(loop.policy), base)


def test_the_moving_average_of_all_weights_is_the_one_computed_by_hand(project):
    write_params(**ALL, method__d_opsd__teacher="ema", method__d_opsd__ema_decay=0.75)
    policy = Trainer(run(), all_processes()).policy
    assert not policy.start  # no method computes with the initial policy
    with pytest.raises(DopsdError, match="no copy of the initial ones was kept"):
        policy.reference()
    name, p = next(iter(policy.trainable().items()))
    old = p.detach().clone()
    p.data.add_(1.0)
    policy.after_update()
    torch.testing.assert_close(policy.ema[name], old + 0.25)


def test_a_killed_run_continues_to_the_same_bytes(project, monkeypatch):
    monkeypatch.setattr(checkpoint_files, "SHARD", "32KB")
    write_params(**ALL, method__d_opsd__teacher="ema", train__updates=5)
    whole = assert_continues_to_the_same_bytes(monkeypatch, digests)
    assert len([name for name in whole if "step-000005/model-0000" in name]) > 3


def test_a_checkpoint_computes_as_the_model_in_training_and_the_base_comes_back(project):
    write_params(**ALL)
    loop = Trainer(run(), all_processes())
    base = logits(loop.policy)
    two_updates(loop)
    Path("saved").mkdir()
    loop.policy.save(Path("saved"))
    params = load_params()
    evaluator = Evaluator(params.evaluation("sudoku", "d_opsd"), "validation")
    for folder, expected in ((Path("saved"), logits(loop.policy)), (None, base)):
        assert torch.equal(logits(evaluator.with_adapter(folder)), expected)
    plain = AutoModelForMaskedLM.from_pretrained("saved").eval()
    assert torch.equal(plain(input_ids=IDS).logits, logits(loop.policy))


def test_a_small_step_in_bfloat16_is_kept_in_float32_and_computes_rounded(tmp_path):
    save_toy(tmp_path / "base", torch.bfloat16)
    policy = load_policy(ModelConfig(path=str(tmp_path / "base"), dtype="bfloat16"), None, 0)
    policy.train_all()
    name, p = next((n, p) for n, p in policy.core.named_parameters() if n.endswith("wte.weight"))
    for _ in range(2):  # of two micro-batches
        policy.head(policy.hidden(IDS, None)).float().sum().backward()
    master = policy.trainable()[name]
    assert p.grad is None and master.grad.dtype == master.dtype == torch.float32
    assert master.grad.abs().max() > 0
    before = p.detach().clone()
    for value in policy.trainable().values():
        value.data.add_(1e-6)
    policy.after_update()
    large = before.abs() > 0.01
    assert torch.equal(p[large], before[large])
    torch.testing.assert_close(master, before.float() + 1e-6, atol=1e-7, rtol=0)
    (tmp_path / "saved").mkdir()
    policy.save(tmp_path / "saved")
    assert torch.equal(load_file(tmp_path / "saved/model.safetensors")[name], master)
    again = load_policy(ModelConfig(path=str(tmp_path / "base"), dtype="bfloat16"), None, 0)
    again.load(tmp_path / "saved")
    assert torch.equal(logits(again), logits(policy))


@pytest.mark.full
def test_all_stages_run_and_the_settings_of_adapters_do_not_count(project):
    write_params(**ALL)
    for stage in STAGES:
        assert main([stage]) == 0, stage
    best = Path("runs/sudoku/d_opsd/0/best")
    assert (best / INDEX).is_file() and not (best / "adapter_config.json").exists()
    assert json.loads((best / "select.json").read_text())["digest"] == sha256(best / INDEX)
    assert read_table(Path("runs/sudoku/d_opsd/0/curve.csv"))[-1]["update"] == 4
    name = identify(run()).folder.name
    write_params(**ALL, train__lora={"r": 2, "alpha": 2, "dropout": 0.0, "targets": ["q_proj"]})
    assert identify(run()).folder.name == name
    write_params(train__learning_rate=0.01)
    assert identify(run()).folder.name != name


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main([*words]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len([text for text in said if text.startswith("dopsd:")]) <= 1
    return said[-1]


HALF, SHORT = {"model__dtype": "bfloat16"}, {"gen_length": 8, "block_length": 8, "steps": 4}


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"method__d_opsd__train": {"lora": {"r": 2, "alpha": 2}}},
            "method.d_opsd.train.lora must be null",
        ),
        ({"model__quantization": "nf4"} | HALF, "model.quantization must be none"),
        ({"launch__shard": True}, "launch.shard: d_opsd trains all weights"),
        (
            {"evaluate__protocols__more": SHORT | {"merged": True}},
            "evaluate.protocols.more.merged must be false",
        ),
        ({"method__d_opsd__teacher_dropout": True}, "method.d_opsd.teacher_dropout must be false"),
    ],
)
def test_what_needs_an_adapter_is_refused_in_one_line(project, capsys, changes, line):
    write_params(**ALL, **changes)
    for command in ("check", "train", "evaluate"):
        assert line in refused(capsys, command)


def test_a_run_starts_from_its_own_kind_and_refuses_the_other(project, capsys):
    for seed, weights in (("0", "lora"), ("1", "all")):
        write_params(train__weights=weights, train__updates=2)
        assert main(["train", "--method", "sft", "--seed", seed]) == 0
        folder = Path("runs/sudoku/sft", seed)
        shutil.copytree(folder / "train/step-000002", folder / "best")
    write_params(**ALL, train__start_from="sudoku/sft/1", train__reference="start")
    policy = Trainer(run(), all_processes()).policy
    start = dict(file_tensors(Path("runs/sudoku/sft/1/best")))
    assert all(torch.equal(start[name], p) for name, p in policy.trainable().items())
    assert all(torch.equal(start[name], p) for name, p in policy.start.items())
    write_params(**ALL, train__start_from="sudoku/sft/0")
    for command in ("check", "train"):
        assert "holds an adapter, and train.weights is all; write one" in refused(capsys, command)
    write_params(train__start_from="sudoku/sft/1")
    for command in ("check", "train"):
        assert "holds all weights, and train.weights is lora; write" in refused(capsys, command)
    for weights, seed, line in (("lora", 1, "set train.weights to all"), ("all", 0, "to lora")):
        write_params(train__weights=weights)
        for target in (OUT, identify(run()).folder):
            shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(f"runs/sudoku/sft/{seed}/train", OUT)
        assert line in refused(capsys, "evaluate", "--method", "d_opsd")


def test_a_damaged_shard_is_named(project, capsys):
    write_params(**ALL, train__updates=2)
    assert main(["train"]) == 0
    shard = OUT / "step-000002/model.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    assert f"{shard}: does not match its digest" in refused(capsys, "evaluate")
