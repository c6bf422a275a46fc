"""Copies of this checkout to disturb: a template, and what an undisturbed run of it leaves."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from small_settings import small_settings

from chaos.plan import UPDATES

ROOT = Path(__file__).resolve().parents[2]
HOOK = Path(__file__).with_name("hook")
CELL = Path("runs/sudoku/d_opsd/0")
REPRO = ("repro", "report")  # every stage before it too


def commit() -> str:
    """The last commit of what is tried, with a digest of what is not committed of it."""
    git = ("git", "-C", str(ROOT))
    names = ["dopsd", "flows", "infra", "dvc.yaml", "params.yaml", "prefect.yaml", "pyproject.toml"]
    last = subprocess.check_output([*git, "log", "-1", "--format=%h", "--", *names], text=True)
    changed = subprocess.check_output([*git, "diff", "HEAD", "--", *names])
    return last.strip() + (f"+{hashlib.sha256(changed).hexdigest()[:8]}" if changed else "")


def settings() -> dict[str, Any]:
    """params.yaml shrunk until every stage takes little more than its imports."""
    raw = small_settings()
    sizes = {"prompts_per_collect": 4, "checkpoint_every": 4, "micro_batch_states": 8}
    raw["train"] |= {"updates": UPDATES} | sizes
    return raw


def environment(folder: Path, state: Path) -> dict[str, str]:
    """Of every process of a trial; $CHAOS_STATE also marks them as this trial's."""
    own = ("MLFLOW_", "PREFECT_", "DVC_", "DOPSD_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env |= {"PYTHONPATH": f"{HOOK}{os.pathsep}{folder}", "CHAOS_STATE": str(state)}
    env |= {"DVC_SITE_CACHE_DIR": str(state / "dvc"), "MLFLOW_DISABLE_TELEMETRY": "true"}
    names = ("OMP_NUM_THREADS", "DVC_NO_ANALYTICS", "DO_NOT_TRACK", "PYTHONDONTWRITEBYTECODE")
    return env | dict.fromkeys(names, "1")


def dvc(*words: str) -> tuple[str, ...]:
    """A command of DVC; stages run by the product's own wrapper."""
    return (sys.executable, "-m", "dopsd" if words[0] == "repro" else "dvc", *words)


def run(folder: Path, state: Path, *words: str, **env: str) -> str:
    """A command that must succeed; what it said."""
    state.mkdir(parents=True, exist_ok=True)
    found = tried(folder, state, *words, **env)
    if found.returncode:
        said = (found.stdout + found.stderr)[-3000:]
        raise SystemExit(f"chaos: {' '.join(words)} failed in {folder}:\n{said}")
    return found.stdout


def tried(folder: Path, state: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A command that may fail."""
    here = {"cwd": folder, "env": environment(folder, state) | env, "stdin": subprocess.DEVNULL}
    return subprocess.run(words, capture_output=True, text=True, errors="replace", **here)


def make_template(place: Path) -> Path:
    """A git repository in which data, base and the base's evaluation are made and committed."""
    template, state = place / "template", place / "template-state"
    left_out = ("base/", "tests/", "docs/", "benchmarks/", "dvc.lock")
    for name in subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines():
        if (ROOT / name).is_file() and not name.startswith(left_out):
            (template / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, template / name)
    (template / "params.yaml").write_text(yaml.safe_dump(settings()))
    git = ("git", "-c", "user.name=chaos", "-c", "user.email=chaos@localhost")
    run(template, state, *git, "init", "-q")
    run(template, state, *dvc("repro", "evaluate_base"), DOPSD_ALLOW_RETRAIN="1")
    connect = "from dopsd.tracking.client import connect; connect('sqlite:///mlflow.db')"
    run(template, state, sys.executable, "-c", connect)  # its migration takes long
    run(template, state, *git, "add", "-A")
    run(template, state, *git, "commit", "-qm", "state")
    run(template, state, *git, "gc", "-q")
    return template


def copy(template: Path, folder: Path) -> Path:
    """A workspace for one trial, with an empty folder for its state beside it; the folder."""
    for path in (folder, state_of(folder)):
        shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(template, folder, symlinks=True)
    (state_of(folder) / "phases").mkdir(parents=True)
    return folder


def state_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}-state")


def digests(folder: Path) -> dict[str, str]:
    """Every file of runs and reports but pages, in which ids are random."""
    found = {}
    for top in ("runs", "reports"):
        for path in sorted((folder / top).rglob("*")):
            if path.is_file() and path.suffix != ".html":
                found[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def locked(folder: Path) -> dict[str, Any]:
    """Of every stage in dvc.lock, digests of its deps and outs by path."""
    stages = yaml.safe_load((folder / "dvc.lock").read_text())["stages"]

    def digests_of(stage: dict[str, Any], part: str) -> dict[str, str]:
        return {item["path"]: item["md5"] for item in stage.get(part, [])}

    return {
        name: {part: digests_of(stage, part) for part in ("deps", "outs")}
        for name, stage in stages.items()
    }


def read_reference(place: Path) -> dict[str, Any]:
    return json.loads((place / "reference.json").read_text())
