"""`make integration`: the compose worker, Prefect's own, ends by itself when its container is
stopped, idle or in training.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from composed import Stack
from conftest import ROOT
from workspace import Workspace, overrides

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the files of a git checkout"),
]
SECRETS = {"POSTGRES_PASSWORD": "p4ss", "STORE_USER": "user", "STORE_PASSWORD": "w0rd"}


def until(holds: Callable[[], object], seconds: float = 600) -> None:
    """Wait until it holds; the bound is for a machine that is busy with other things."""
    ends = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.2)


def database(folder: Path) -> str:
    return f"sqlite+aiosqlite:///{folder / 'prefect.db'}"


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    """Prefect's server on sqlite and the worker: neither the store nor MLflow is needed to stop."""
    origin = Workspace(tmp_path / "origin")
    branch = origin.run("git", "branch", "--show-current").strip()
    stack = Stack(
        tmp_path / "stack",
        SECRETS | {"DOPSD_REPOSITORY": str(origin.folder), "DOPSD_REVISION": branch},
    )
    stack.start("prefect", PREFECT_SERVER_DATABASE_CONNECTION_URL=database(tmp_path))
    try:
        stack.until_healthy("prefect")
        changes = {"DOPSD_DVC_REMOTE": "", "PREFECT_WORKER_CANCELLATION_POLL_SECONDS": "1"}
        stack.start("worker", DOPSD_WORKSPACE=str(tmp_path / "workspace"), **changes)
        stack.until_healthy("worker")
        yield stack
    finally:
        stack.stop()


def test_an_idle_worker_ends_within_seconds(stack: Stack):
    worker, started = stack.running["worker"], time.monotonic()
    worker.terminate()
    assert worker.wait(60) == 143
    assert time.monotonic() - started < 60


def test_a_worker_in_training_ends_after_training_has_saved(stack: Stack, tmp_path: Path):
    changes = overrides() | {
        "train.updates": 2000,
        "train.checkpoint_every": 1000,
        "tracking.enabled": False,
    }
    stack.run(
        "prefect",
        "deployment",
        "run",
        "dopsd/train",
        "--param",
        f"overrides={json.dumps(changes)}",
        like="worker",
    )
    state = tmp_path / "workspace/work/train.json"
    until(lambda: state.is_file() and json.loads(state.read_text())["done"] >= 2)
    worker = stack.running["worker"]
    worker.terminate()
    assert worker.wait(180) == 143
    assert list((tmp_path / "workspace/work").glob("train-*/step-*/state.json"))


def test_a_run_can_be_cancelled_after_its_server_was_away(stack: Stack, tmp_path: Path):
    """Prefect's worker stops to ask for cancellations then; the flow asks by itself."""
    changes = overrides() | {"train.updates": 20000, "train.checkpoint_every": 10000}
    asked = f"overrides={json.dumps(changes | {'tracking.enabled': False})}"
    words = ("prefect", "deployment", "run", "dopsd/train", "--param", asked)
    stack.run(*words, like="worker")
    workspace, log = tmp_path / "workspace", tmp_path / "stack/worker.log"
    state = workspace / "work/train.json"
    until(lambda: state.is_file() and json.loads(state.read_text())["done"] >= 2)
    Stack.end(stack.running["prefect"])
    until(lambda: "flow run cancellation will fail" in log.read_text())
    stack.start("prefect", PREFECT_SERVER_DATABASE_CONNECTION_URL=database(tmp_path))
    stack.until_healthy("prefect")
    listed = stack.run(
        "prefect", "flow-run", "ls", "--state", "RUNNING", "-o", "json", like="worker"
    )
    assert not list(workspace.glob("work/train-*/step-*"))
    stack.run("prefect", "flow-run", "cancel", json.loads(listed)[0]["id"], like="worker")
    until(lambda: list(workspace.glob("work/train-*/step-*/state.json")))
    until(lambda: not [p for p in psutil.process_iter() if "prefect.engine" in cmdline(p)])


def cmdline(process: psutil.Process) -> list[str]:
    """Words of a process of the worker's workspace; none of another, or of one that is gone."""
    try:
        return process.cmdline() if "workspace" in process.cwd() else []
    except psutil.Error:
        return []
