"""A base that is there is never made again silently, and nothing is lost by a kill."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, write_params

from dopsd.cli.main import main
from dopsd.config.loading import load_params
from dopsd.core.fingerprint import sha256
from dopsd.tasks.common.config import PretrainOverrides
from dopsd.training.pretraining import origin

WEIGHTS = Path("base/sudoku/model.safetensors")
FEW = {"pretrain__updates": 2}


def flip(path: Path) -> None:
    found = bytearray(path.read_bytes())
    found[len(found) // 2] ^= 1
    path.write_bytes(bytes(found))


RECORD = Path("base/sudoku/pretrain.json")
MADE = "base/sudoku was made "
OTHER = "pretrain.recipe 1 (params.yaml: 2)."
OTHERS = "pretrain.seed 0 (params.yaml: 7), sampling.gen_length 40 (params.yaml: 48)."
NOT_WRITTEN = "base/sudoku/model.safetensors: not the file that pretraining wrote."
DATA = Path("data/sudoku/train.jsonl")
NO_RECORD = "base/sudoku/pretrain.json: missing or damaged"
SEED = {"pretrain__seed": 7, "sampling__gen_length": 48, "sampling__steps": 24}
CHANGES = {
    "recipe": (lambda: write_params(pretrain__recipe=2), f"{MADE}with {OTHER}"),
    "settings": (lambda: write_params(**SEED), f"{MADE}with {OTHERS}"),
    "data": (lambda: flip(DATA), f"{MADE}from another data/sudoku/train.jsonl"),
    "damage": (lambda: flip(WEIGHTS), NOT_WRITTEN),
    "no weights": (lambda: WEIGHTS.unlink(), NOT_WRITTEN),
    "no record": (lambda: RECORD.unlink(), NO_RECORD),
    "no JSON": (lambda: RECORD.write_text('{"data": 1}'), NO_RECORD),
}


@pytest.mark.parametrize("task", ["sudoku", "countdown", "chains"])
@pytest.mark.full
def test_a_shipped_base_is_that_of_its_settings_and_problems(tmp_path, monkeypatch, task):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base").symlink_to(ROOT / "base")
    shutil.copy(ROOT / "params.yaml", tmp_path)
    assert main(["prepare", "--task", task]) == 0
    params = load_params(tmp_path / "params.yaml")
    base = params.embedded_base(task)
    assert origin.mismatch(base, task) is None
    assert base.shape.updates == {"sudoku": 700}.get(task, 4000)  # data.TASK.pretrain counts
    other = params.data.tasks[task].model_copy(update={"pretrain": PretrainOverrides(updates=9)})
    changed = params.model_copy(update={"data": params.data.model_copy(update={task: other})})
    assert "pretrain.updates" in str(origin.mismatch(changed.embedded_base(task), task))


def test_a_task_without_a_base_made_here_is_refused(project, capsys):
    assert main(["pretrain", "--task", "gsm8k"]) == 2
    assert "--task gsm8k: no base is made for this task" in capsys.readouterr().err


@pytest.mark.parametrize("name", CHANGES)
def test_a_base_that_does_not_match_is_kept_and_one_line_says_why_and_what_to_do(
    project, capsys, name
):
    change, why = CHANGES[name]
    change()
    before = WEIGHTS.is_file() and sha256(WEIGHTS)
    for command in ("pretrain", "check"):
        assert main([command]) == 2
        err = capsys.readouterr().err
        assert err.startswith(f"dopsd: pretrain: {why}") and err.count("\n") == 1
        assert "git checkout -- base/sudoku" in err
        assert "run DOPSD_ALLOW_RETRAIN=1 dopsd run (or dvc repro pretrain;" in err
        assert " min)" in err
    assert (WEIGHTS.is_file() and sha256(WEIGHTS)) == before


def test_a_base_that_matches_is_not_made_again(project, capsys, monkeypatch):
    before = WEIGHTS.stat().st_mtime_ns
    monkeypatch.setenv("DOPSD_ALLOW_RETRAIN", "1")
    assert main(["pretrain"]) == 0
    assert capsys.readouterr().err == "pretrain: base/sudoku is up to date\n"
    assert WEIGHTS.stat().st_mtime_ns == before
    monkeypatch.setenv("DOPSD_ALLOW_RETRAIN", "yes")
    assert main(["pretrain"]) == 2
    assert "DOPSD_ALLOW_RETRAIN=yes: expected 1" in capsys.readouterr().err


def test_with_leave_the_base_is_made_again_and_then_matches(project, capsys, monkeypatch):
    write_params(**FEW)
    before = sha256(WEIGHTS)
    monkeypatch.setenv("DOPSD_ALLOW_RETRAIN", "1")
    assert main(["pretrain"]) == 0
    assert sha256(WEIGHTS) != before
    monkeypatch.delenv("DOPSD_ALLOW_RETRAIN")
    assert main(["check"]) == main(["pretrain"]) == 0
    assert not list(Path("work").glob("*base*")) and not list(Path("work").glob("pretrain-*"))


def test_a_forced_run_trains_though_the_base_matches(project, capsys, monkeypatch):
    write_params(**FEW)
    monkeypatch.setenv("DOPSD_ALLOW_RETRAIN", "force")
    for _ in range(2):
        assert main(["pretrain"]) == 0
        assert "2/2 updates" in capsys.readouterr().err


def test_without_a_base_nothing_is_lost_and_nothing_is_asked(project):
    shutil.rmtree("base/sudoku")
    write_params(**FEW)
    assert main(["pretrain"]) == 0
    assert WEIGHTS.is_file()


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_a_kill_while_the_new_base_takes_the_place_of_the_old_leaves_one_of_them_whole(
    project, monkeypatch, count
):
    """`count` renames of folders happen before the kill."""
    write_params(**FEW)
    monkeypatch.setenv("DOPSD_ALLOW_RETRAIN", "1")
    rename, done = Path.rename, []

    def dying(self: Path, target: Path) -> Path:
        if self.is_dir():
            if len(done) == count:
                raise SystemExit(9)
            done.append(self)
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", dying)
        if count < 3:
            with pytest.raises(SystemExit):
                main(["pretrain"])
        else:
            assert main(["pretrain"]) == 0
    if count < 3:
        monkeypatch.delenv("DOPSD_ALLOW_RETRAIN")
        assert main(["pretrain"]) == 2  # the old base, which these settings do not make
        write_params()
    assert main(["pretrain"]) == 0 and main(["check"]) == 0


def test_the_check_needs_no_torch(project):
    code = (
        "import sys; sys.modules['torch'] = None; from dopsd.cli.main import main;"
        " sys.exit(main(['check']))"
    )
    write_params(pretrain__recipe=2)
    found = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert found.returncode == 2 and "pretrain.recipe 1 (params.yaml: 2)" in found.stderr
