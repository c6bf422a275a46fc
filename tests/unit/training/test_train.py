"""The loop: exact resume, damaged checkpoints, faults that end a run."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import stop_in, write_params
from toy_runs import OUT, adapter_digests, assert_continues_to_the_same_bytes, die_at, train

from dopsd.cli.main import main
from dopsd.config.loading import load_params
from dopsd.config.tasks import AlgorithmsConfig
from dopsd.core.fingerprint import sha256
from dopsd.core.tables import read_log, read_table
from dopsd.core.tensor_files import load_tensors, save_tensors
from dopsd.distributed.process_group import all_processes
from dopsd.models.adapter_files import ADAPTER, write_digests
from dopsd.training import checkpoint
from dopsd.training.config import TrainConfig
from dopsd.training.run_identity import identify
from dopsd.training.trainer import TOKENS, Trainer
from dopsd.training.training_folder import TrainingFolder


def scratch() -> Path:
    return identify(load_params().run("sudoku", "d_opsd", 0)).folder


def test_a_tiny_loss_is_shown():
    trainer = SimpleNamespace(losses=[5.7e-6])
    assert Trainer.describe(trainer, {TOKENS: 2.0}) == "mean loss 5.7e-06  2 tokens/s"


def test_a_killed_run_continues_to_the_same_bytes_in_the_middle_of_a_collect(
    project, monkeypatch, capsys
):
    # 3 updates a collect, checkpoints at 2 and 4: both inside a collect
    write_params(train__updates=5)
    assert train() == 0
    whole, table = adapter_digests(), read_table(OUT.with_suffix(".csv"))
    losses = [row["loss"] for row in table]
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "train: 5/5" in line]
    assert f"mean loss {sum(losses[2:]) / 3:.4g}" in line and losses[4] != sum(losses[2:]) / 3
    for path in Path("work").glob("train-*"):
        path.rename(path.with_name("other"))
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        die_at(patch, 3)
        train()
    here = scratch()
    assert [row["update"] for row in read_log(here / "log.jsonl")] == [1, 2, 3]
    assert train() == 0
    assert adapter_digests() == whole
    assert read_table(OUT.with_suffix(".csv")) == table
    assert sorted(whole) == ["step-000002", "step-000004", "step-000005"]


def test_a_collect_is_learnt_again_and_continues_to_the_same_bytes(project, monkeypatch):
    """3 updates a collect, twice; killed in the second pass, with dropout's random state."""
    assert "reuse" not in TrainConfig().decisive()  # runs of older releases keep their names
    lora = {"r": 4, "alpha": 4, "dropout": 0.2, "targets": ["q_proj"]}
    write_params(train__updates=8, train__reuse=2, train__lora=lora)
    assert_continues_to_the_same_bytes(monkeypatch, adapter_digests, killed_at=5)
    rows = read_log(scratch() / "log.jsonl")
    assert [row["count/collects"] for row in rows] == [1, 1, 1, 1, 1, 1, 2, 2]


def test_a_truncated_checkpoint_is_reported_and_the_one_before_is_used(trained, capsys):
    whole = adapter_digests()
    here = scratch()
    weights = here / "step-000004" / ADAPTER
    weights.write_bytes(weights.read_bytes()[:-10])
    capsys.readouterr()
    assert train() == 0
    said = capsys.readouterr().err
    assert f"{ADAPTER} does not match its digest" in said
    assert "continuing after update 2" in said
    assert adapter_digests() == whole


@pytest.mark.full
def test_a_measured_number_of_tokens_is_kept(project):
    write_params(train__updates=1, train__micro_batch_states="auto")
    assert train() == 0
    run = load_params().run("sudoku", "d_opsd", 0)
    step = identify(run).folder / "step-000001"
    batches = step / "batches.0.safetensors"
    tensors = load_tensors(batches)
    measured = tensors["micro_batch"].tolist()
    assert measured[:2] == [64, 0] and measured[2] > 0
    save_tensors(tensors | {"micro_batch": torch.tensor([64, 0, 700])}, batches)
    write_digests(step)
    accelerator = all_processes()
    trainer = Trainer(run, accelerator)
    folder = TrainingFolder(identify(run).folder, accelerator)
    folder.resume(trainer.load_state, trainer.settings.checkpoint_every)
    assert (trainer.micro_batches.size, trainer.micro_batches.tokens) == (64, 700)


def test_a_loss_that_is_not_finite_stops_with_advice_and_keeps_the_last_checkpoint(
    project, monkeypatch, capsys
):
    loss = None

    def poisoned(self, policy, batch):
        found = loss(self, policy, batch)
        factor = float("nan") if policy.updates_made == 2 else 1.0
        return type(found)(found.total * factor, found.metrics)

    from dopsd.algorithms.d_opsd.algorithm import DOpsd
    from dopsd.models.llm_policy import LlmPolicy

    loss, after = DOpsd.loss, LlmPolicy.after_update
    monkeypatch.setattr(LlmPolicy, "updates_made", 0, raising=False)

    def counted(self):
        self.updates_made += 1
        after(self)

    monkeypatch.setattr(LlmPolicy, "after_update", counted)
    monkeypatch.setattr(DOpsd, "loss", poisoned)
    assert train() == 1
    said = capsys.readouterr().err
    assert "not finite at update 3" in said and "train.learning_rate" in said
    here = scratch()
    assert [c.update for c in checkpoint.checkpoints(here)] == [2]


def test_a_full_disk_ends_in_one_line_and_leaves_no_half_checkpoint(project, monkeypatch, capsys):
    import safetensors.torch

    save = safetensors.torch.save_file

    def full(tensors, path, metadata):
        if path.name == "trainer.safetensors" and "000004" in str(path):
            path.write_bytes(b"half")
            raise safetensors.SafetensorError(
                "Error while serializing: I/O error: No space left on device (os error 28)"
            )
        save(tensors, path, metadata)

    with monkeypatch.context() as patch:
        patch.setattr(safetensors.torch, "save_file", full)
        assert train() == 75
    said = capsys.readouterr().err
    assert "no space left" in said and "Traceback" not in said
    here = scratch()
    assert [c.update for c in checkpoint.checkpoints(here)] == [2]
    assert not list(here.glob("*.tmp"))
    assert train() == 0


@pytest.mark.parametrize(("damaged", "kept"), [([2], 8), ([6, 8], 5)])
def test_a_stop_on_the_way_back_to_a_damaged_checkpoint_loses_nothing(
    project, monkeypatch, capsys, damaged, kept
):
    write_params(train__updates=8)
    assert train() == 0
    whole = adapter_digests()
    here = scratch()
    for update in damaged:
        (here / f"step-00000{update}" / ADAPTER).write_bytes(b"gone")
    with monkeypatch.context() as patch:
        stop_in(patch, 6)
        assert train() == 130
    assert (
        f"no checkpoint in {here} can be resumed; starting from update 0" in capsys.readouterr().err
    )
    assert checkpoint.newest_resumable(here, 2).update == kept
    assert train() == 0 and adapter_digests() == whole


def test_a_checkpoint_that_was_damaged_while_training_went_on_is_not_left_out(
    project, monkeypatch, capsys
):
    save = TrainingFolder.save

    def saved(self, state, save_weights):
        save(self, state, save_weights)
        if state.update == 4:
            (self.scratch / "step-000002" / ADAPTER).write_bytes(b"gone")

    with monkeypatch.context() as patch:
        patch.setattr(TrainingFolder, "save", saved)
        assert train() == 75
    said = "step-000002 was damaged after saving; run the same command to repeat it"
    assert said in capsys.readouterr().err
    assert not OUT.exists()
    assert train() == 0 and len(adapter_digests()) == 2


def test_a_second_trainer_in_the_same_folder_waits_a_while_and_is_refused(
    project, monkeypatch, capsys
):
    from accelerate import Accelerator

    from dopsd.training import training_folder
    from dopsd.training.training_folder import TrainingFolder

    here = scratch()
    monkeypatch.setattr(training_folder, "SAVING", 0.5)
    with TrainingFolder(here, Accelerator(cpu=True)):
        assert train() == 75
    assert "another process is training in" in capsys.readouterr().err
    assert train() == 0


def test_another_tokenizer_or_config_of_the_base_is_another_run(project):
    before = scratch()
    with Path("base/sudoku/config.json").open("a") as config:
        config.write(" ")
    assert scratch() != before


def test_a_run_leaves_no_time_path_or_id_in_what_is_compared(trained, trained_once):
    text = OUT.with_suffix(".csv").read_text() + OUT.with_suffix(".json").read_text()
    assert "time/" not in text and str(trained_once) not in text
    config = json.loads((OUT / "step-000004" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "base"


def test_the_first_update_of_a_warm_up_has_learning_rate_zero(project):
    write_params(train__updates=1)
    assert train() == 0
    tensors = load_tensors(OUT / "step-000001" / ADAPTER)
    assert all(not t.any() for name, t in tensors.items() if "lora_B" in name)


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(name, marks=[] if name == "diffu_grpo" else pytest.mark.full)
        for name in AlgorithmsConfig.model_fields
    ],
)
def test_every_method_trains_on_the_same_loop_and_stays_the_same_when_it_is_interrupted(
    project, method: str
):
    out = Path("runs/sudoku") / method / "0"
    assert main(["train", "--method", method]) == 0
    rows = read_table(out / "train.csv")
    assert [row["update"] for row in rows] == [1, 2, 3, 4]
    assert rows[-1]["count/trajectories"] > 0 and all(math.isfinite(row["loss"]) for row in rows)
    whole = sha256(out / "train" / "step-000004" / ADAPTER)
    here = identify(load_params().run("sudoku", method, 0)).folder
    shutil.rmtree(here / "step-000004")
    assert main(["train", "--method", method]) == 0
    assert sha256(out / "train" / "step-000004" / ADAPTER) == whole


def test_targets_that_match_no_layer_are_refused_with_those_that_exist(project, capsys):
    write_params(train__lora={"r": 4, "alpha": 4, "dropout": 0.0, "targets": ["o_proj"]})
    assert train() == 2
    said = capsys.readouterr().err
    assert "o_proj" in said and "attn_out" in said and "ff_proj" in said


@pytest.mark.parametrize(
    "change", [{"update": "4"}, {"update": 3}, {"waiting": -1}, {"gathered": []}, None]
)
def test_a_sealed_state_of_another_make_is_one_line(trained, capsys, change):
    here = scratch()
    folder = checkpoint.folders(here)[-1]
    state = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps([] if change is None else state | change))
    checkpoint.seal(folder.rename(here / "half"), folder)
    if change is not None:
        write_params(train__updates=6)  # goes on from there
    capsys.readouterr()
    assert train() == 2
    said = capsys.readouterr().err
    assert "state.json" in said if change is None else "cannot be resumed" in said


def test_the_log_uploader_reads_the_settings_that_training_read(project, monkeypatch):
    pytest.importorskip("mlflow")
    write_params(train__updates=2, tracking__enabled=True)
    Path("params.yaml").rename("other.yaml")
    commands, real = [], subprocess.Popen

    def recorded(command, **kwargs):
        commands.append(command)
        return real([sys.executable, "-c", "import sys; sys.stdin.read()"], **kwargs)

    monkeypatch.setattr(subprocess, "Popen", recorded)
    words = ["--task", "sudoku", "--method", "d_opsd", "--seed", "0"]
    assert main(["train", "--params", "other.yaml", *words]) == 0
    uploaders = [command[4:] for command in commands if "follow" in command]
    assert uploaders == [[*words, "--params", "other.yaml"]]
