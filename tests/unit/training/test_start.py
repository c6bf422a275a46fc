"""A run that starts from a checkpoint: its weights at update 0, its identity, its reference."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from conftest import built_once, in_copy, write_params
from toy_runs import assert_continues_to_the_same_bytes

from dopsd.cli.main import main
from dopsd.config.loading import load_params
from dopsd.config.profiles import AS_IT_STANDS
from dopsd.core.errors import Code, DopsdError
from dopsd.core.fingerprint import sha256
from dopsd.distributed.process_group import all_processes
from dopsd.models.adapter_files import ADAPTER, read_adapter
from dopsd.models.llm_policy import LlmPolicy, load_policy
from dopsd.models.lora import load_adapter
from dopsd.pipeline.doctor.machine import starts
from dopsd.pipeline.run.request import RunRequest, check
from dopsd.training.run_identity import identify
from dopsd.training.run_settings import RunSettings
from dopsd.training.trainer import Trainer

IDS = torch.arange(2, 20).reshape(2, 9)
STEP = "runs/sudoku/sft/0/train/step-000004"
LORA = {"r": 2, "alpha": 2, "dropout": 0.0, "targets": ["q_proj"]}


@torch.no_grad()
def logits(policy: LlmPolicy) -> torch.Tensor:
    return policy.head(policy.hidden(IDS, None))


def run(method: str = "d_opsd") -> RunSettings:
    return load_params().run("sudoku", method, 0)


def digests() -> dict[str, str]:
    files = sorted(Path("runs/sudoku/d_opsd/0/train").rglob(ADAPTER))
    return {path.parent.name: sha256(path) for path in files}


@pytest.fixture(scope="module")
def tuned_once(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a run of sft, whose step 2 is its best checkpoint."""

    def build(folder: Path) -> None:
        with in_copy(prepared, folder):
            write_params(train__learning_rate=0.01)
            assert main(["train", "--method", "sft"]) == 0
            sft = Path("runs/sudoku/sft/0")
            shutil.copytree(sft / "train/step-000002", sft / "best")

    return built_once(tmp_path_factory, "tuned", build) / "project"


@pytest.fixture
def fine_tuned(tuned_once: Path, project: Path) -> Path:
    shutil.copytree(tuned_once, project, dirs_exist_ok=True)
    return Path("runs/sudoku/sft/0")


def test_a_run_computes_at_update_0_as_the_checkpoint_and_its_reference_is_chosen(fine_tuned):
    alone = load_policy(run().model, run().train.lora, 0)
    base = logits(alone)
    load_adapter(alone.adapted, read_adapter(fine_tuned / "best"))
    start = logits(alone)
    assert not torch.equal(start, base)
    for reference, expected in (("base", base), ("start", start)):
        write_params(train__start_from="sft", train__reference=reference)
        policy = Trainer(run(), all_processes()).policy
        assert torch.equal(logits(policy), start)
        for p in policy.trainable().values():
            p.data.mul_(1.5)
        changed = logits(policy)
        assert not torch.equal(changed, start)
        for context in (policy.reference, policy.teacher):
            with context():
                assert torch.equal(logits(policy), expected), (reference, context)
        assert torch.equal(logits(policy), changed)


def test_names_of_one_checkpoint_are_one_run_and_another_start_is_another(fine_tuned):
    write_params()
    names = {identify(run()).folder.name}
    for reference in ("base", "start"):
        best = "sft", "sudoku/sft/0", "runs/sudoku/sft/0", f"{fine_tuned}/train/step-000002"
        for same in (best, (STEP,)):
            found = set()
            for name in same:
                write_params(train__start_from=name, train__reference=reference)
                found.add(identify(run()).folder.name)
            assert len(found) == 1
            names |= found
    assert len(names) == 5
    write_params(train__start_from="sft")
    before = identify(run()).folder.name
    shutil.copyfile(f"{STEP}/{ADAPTER}", fine_tuned / "best" / ADAPTER)
    assert identify(run()).folder.name != before


def test_a_killed_run_that_started_from_a_checkpoint_continues_to_the_same_bytes(
    fine_tuned, monkeypatch
):
    write_params(train__start_from="sft", train__reference="start", train__updates=5)
    whole = assert_continues_to_the_same_bytes(monkeypatch, digests)
    assert sorted(whole) == ["step-000002", "step-000004", "step-000005"]
    totals = json.loads(Path("runs/sudoku/d_opsd/0/train.json").read_text())
    assert totals["started_from"] == "runs/sudoku/sft/0/best"
    assert totals["start"] == sha256(fine_tuned / "best" / ADAPTER)
    link = Path("data/starts/sudoku/d_opsd/0") / ADAPTER
    assert link.is_symlink() and link.resolve() == (fine_tuned / "best" / ADAPTER).resolve()
    write_params()
    assert main(["train"]) == 0
    assert not link.is_symlink()
    assert digests() != whole


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"train__start_from": "sft", "train__lora": LORA}, "with r 4 (train.lora gives 2)"),
        (
            {"train__start_from": "rft"},
            "train.start_from: rft: runs/sudoku/rft/0 has no best checkpoint; train it first (dopsd"
            " train --task sudoku --method rft --seed 0, then evaluate and select), or name another"
            " start (D513)",
        ),
        ({"train__start_from": "work/none"}, "no adapter_model.safetensors in work/none"),
        ({"train__start_from": "sftt"}, "train.start_from: sftt: unknown"),
        ({"train__start_from": "d_opsd"}, "sudoku/d_opsd/0 cannot start from its own checkpoints"),
        (
            {"method__d_opsd__train": {"start_from": STEP}, "matrix__methods": ["sft", "d_opsd"]},
            "d_opsd starts from sudoku/sft/0, a run of the same matrix",
        ),
        (
            {"method__d_opsd__train": {"start_from": "sft"}, "matrix__methods": ["sft", "d_opsd"]},
            "train it first, then remove sft from matrix.methods",
        ),
        ({"train__reference": "start"}, "needs train.start_from, which d_opsd lacks"),
    ],
)
def test_what_cannot_start_is_refused_in_one_line(fine_tuned, capsys, changes, line):
    write_params(**changes)
    capsys.readouterr()
    for command in (["check"], ["train", "--method", "d_opsd"]):
        assert main(command) == 2
        said = capsys.readouterr().err.strip().splitlines()
        assert line in said[-1]
        assert len([text for text in said if text.startswith("dopsd:")]) == 1


def test_a_start_is_checked_before_a_run_is_submitted_and_by_doctor(fine_tuned):
    write_params(train__start_from="sft", train__lora=LORA)
    with pytest.raises(DopsdError, match="with r 4") as refused:
        check(RunRequest(AS_IT_STANDS))
    assert refused.value.code is Code.ADAPTER_MISFIT
    assert [finding.is_fit for finding in starts(load_params())] == [False]
    assert identify(run()).start["started_from"] == "runs/sudoku/sft/0/best"  # who only reads it
    write_params(train__start_from="sft")
    assert [finding.is_fit for finding in starts(load_params())] == [True]
    assert check(RunRequest(AS_IT_STANDS)).train.start_from == "sft"
    write_params(train__start_from="work/" + 300 * "x")
    (finding,) = starts(load_params())
    assert finding.message.startswith("train.start_from: File name too long: ")
