"""`dvc repro` on a small copy of this project: what runs again, what comes back, what stays."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from workspace import REPRO, Workspace, ran

from dopsd.core.environment import RESTORE_ONLY
from dopsd.core.fingerprint import sha256
from dopsd.core.tables import read_table

ADAPTER = "runs/sudoku/d_opsd/0/best/adapter_model.safetensors"
EVERY = {"prepare", "pretrain", "evaluate_base", "train", "evaluate", "select", "test", "report"}


@pytest.mark.full
def test_repro_runs_what_changed_and_old_data_comes_back(tmp_path: Path):
    w = Workspace(tmp_path, is_warm=True)
    assert w.repro() == EVERY
    assert "up to date" in w.dvc("status")
    w.commit()
    assert w.repro() == set()
    assert w.run("git", "status", "--porcelain") == ""
    adapter, data = sha256(tmp_path / ADAPTER), sha256(tmp_path / "data/sudoku/train.jsonl")
    metrics = (tmp_path / "runs/sudoku/base.json").read_bytes()

    section = {"task": "sudoku", "method": "d_opsd", "seeds": [0], "run": []}
    variants = {"default": {}, "same": {"clip": None}}
    w.write(ablate=section | {"tables": {"clipping": ["same"]}, "variants": variants})
    said = w.run("python", "-m", "dopsd", "ablate", "clipping")
    assert "Running stage 'variant@default-0'" in said and "| same (params.yaml) |" in said
    assert sha256(tmp_path / ADAPTER.replace("d_opsd", "d_opsd-default")) == adapter
    assert "Running stage" not in w.run("python", "-m", "dopsd", "ablate", "clipping")

    w.write(train__learning_rate=2e-3)
    assert w.repro() == {"train", "evaluate", "select", "test", "report"}
    assert sha256(tmp_path / ADAPTER) != adapter
    command = (sys.executable, "-m", "dopsd")
    assert "train.learning_rate: 0.002 -> " in w.run(*command, "summary", "--previous")
    w.run(*command, "restore", "sudoku/d_opsd/0")
    assert sha256(tmp_path / ADAPTER) == adapter and w.repro() == set()
    assert not list(tmp_path.glob("runs/sudoku/d_opsd/0/train/step-*"))  # of the other run
    w.run(*command, "restore", "sudoku/d_opsd/0")  # and forth
    assert sha256(tmp_path / ADAPTER) != adapter and w.repro() == set()
    w.write()
    assert w.repro() == set()  # all of it from the run cache
    assert sha256(tmp_path / ADAPTER) == adapter

    w.write(data__sudoku__seed=1)
    words = (sys.executable, "-m", "dvc", *REPRO, "evaluate_base")
    refused = subprocess.run(words, cwd=tmp_path, env=w.env, capture_output=True, text=True)
    assert refused.returncode != 0
    assert "base/sudoku was made from another data/sudoku/train.jsonl" in refused.stderr
    assert "evaluate_base" not in ran(refused.stdout)
    assert w.run("git", "diff", "--stat", "base") == ""
    w.env["DOPSD_ALLOW_RETRAIN"] = "1"
    assert w.repro("evaluate_base") == {"pretrain", "evaluate_base"}
    w.commit()
    assert sha256(tmp_path / "data/sudoku/train.jsonl") != data
    w.run("git", "checkout", "-q", "HEAD~1")
    w.dvc("checkout")
    assert sha256(tmp_path / "data/sudoku/train.jsonl") == data
    assert (tmp_path / "runs/sudoku/base.json").read_bytes() == metrics
    assert "up to date" in w.dvc("status")


@pytest.mark.full
def test_a_fresh_clone_has_a_true_lock_and_a_changed_docstring_keeps_it_true(tmp_path: Path):
    """Data is not in git: it is made with the digests of the lock, and the base fits it."""
    w = Workspace(tmp_path, is_shipped=True, is_warm=True)
    assert w.repro("--allow-missing", "pretrain") == set()
    assert w.repro("pretrain") == {"prepare"}
    assert w.run("git", "status", "--porcelain") == ""
    for name in ("config/params", "tasks/sudoku/task", "models/llada/modeling"):
        path = tmp_path / f"dopsd/{name}.py"
        path.write_text(path.read_text().replace('"""', '"""Said otherwise. ', 1))
    assert "up to date" in w.dvc("status", "prepare", "pretrain")


pytestmark = pytest.mark.full
RUN = Path("runs/sudoku/d_opsd/0")
SHORT = {"train__updates": 4, "train__checkpoint_every": 1, "tracking__enabled": True}


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    made = Workspace(tmp_path / "project", is_warm=True)
    made.write(**SHORT)
    monkeypatch.chdir(made.folder)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return made


def adapters(folder: Path) -> set[int]:
    """Inodes of the adapters below a folder."""
    return {p.stat().st_ino for p in folder.rglob("*") if p.is_file() and is_tensors(p)}


def is_tensors(path: Path) -> bool:
    with path.open("rb") as file:
        return b'"base_model.' in file.read(4096)


def steps(folder: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in folder.glob("step-??????"))


def test_a_checkpoint_is_one_file_and_the_unwanted_go(workspace: Workspace, tmp_path: Path):
    workspace.run("dopsd", "repro")
    workspace.run("dopsd", "publish")
    files = [adapters(Path(name)) for name in ("work", RUN / "train", "mlartifacts", ".dvc/cache")]
    assert files[0] == files[1] == files[2] and len(files[0]) == 4
    assert len(files[3]) == 1  # a copy of the best one

    curve = (RUN / "curve.csv").read_bytes()
    workspace.run("dopsd", "params", "--set", "checkpoints.keep=best_and_last")
    said = workspace.run("dopsd", "repro")
    assert "Running stage" not in said and "keep: sudoku/d_opsd/0:" in said
    best = max(read_table(RUN / "curve.csv")[1:], key=lambda row: row["accuracy"])["update"]
    wanted = sorted({int(best), 4})
    (scratch,) = Path("work").glob("train-*")
    assert steps(RUN / "train") == steps(scratch) == wanted
    assert (RUN / "curve.csv").read_bytes() == curve
    assert workspace.dvc("status", "--json").strip() == "{}"
    another_machine_takes_the_results(workspace, tmp_path)

    workspace.run("dopsd", "evaluate", "--task", "sudoku", "--method", "d_opsd", "--seed", "0")
    workspace.run("dopsd", "params", "--set", "train.learning_rate=0.004")
    assert "keep: sudoku/d_opsd/0:" in workspace.run("dopsd", "repro")  # at the end of its test
    assert 4 in steps(RUN / "train") and len(steps(RUN / "train")) <= 2


def another_machine_takes_the_results(workspace: Workspace, tmp_path: Path) -> None:
    workspace.dvc("remote", "add", "--local", "--default", "store", str(tmp_path / "store"))
    workspace.dvc("push", "--quiet", "--run-cache")
    other = Workspace(tmp_path / "other", is_warm=True)
    for name in ("params.yaml", ".dvc/config.local"):
        shutil.copyfile(workspace.folder / name, other.folder / name)
    other.env[RESTORE_ONLY] = "1"
    other.run("dopsd", "repro", "--pull", "report")
    for name in ("curve.csv", "train/checkpoints.json", "best/adapter_model.safetensors"):
        assert (other.folder / RUN / name).read_bytes() == (RUN / name).read_bytes()
    assert steps(other.folder / RUN / "train") == []
