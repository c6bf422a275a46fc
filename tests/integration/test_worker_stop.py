"""`make integration`: the compose worker, Prefect's own, ends by itself when its container is
stopped in training.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from composed import Stack
from waiting import until
from workspace import Workspace, overrides, take_cache

pytestmark = pytest.mark.integration
SECRETS = {"POSTGRES_PASSWORD": "p4ss", "STORE_USER": "user", "STORE_PASSWORD": "w0rd"}


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
        start_worker(stack, tmp_path)
        yield stack
    finally:
        stack.stop()


def test_a_worker_ends_in_training_and_its_run_hears_of_a_cancellation_at_any_time(
    stack: Stack, reproduced: Path, tmp_path: Path
):
    workspace = tmp_path / "workspace"
    take_cache(reproduced, workspace)
    cancel_after_the_server_was_away(stack, tmp_path)
    started = saved(workspace)
    train_for_long(stack, workspace)
    worker = stack.running["worker"]
    worker.terminate()
    assert worker.wait(180) == 143
    assert saved(workspace) > started
    start_worker(stack, tmp_path)  # the run goes on
    until(lambda: done(workspace) > saved(workspace))


def start_worker(stack: Stack, folder: Path) -> None:
    changes = {"DOPSD_DVC_REMOTE": "", "PREFECT_WORKER_CANCELLATION_POLL_SECONDS": "1"}
    stack.start("worker", DOPSD_WORKSPACE=str(folder / "workspace"), **changes)
    stack.until_healthy("worker")


def saved(workspace: Path) -> int:
    """Newest update with a checkpoint; 0 if there is none."""
    found = workspace.glob("work/train-*/step-??????/state.json")
    return max((int(path.parent.name[5:]) for path in found), default=0)


def done(workspace: Path) -> int:
    """Updates of the training in progress."""
    state = workspace / "work/train.json"
    return int(json.loads(state.read_text())["done"]) if state.is_file() else 0


def train_for_long(stack: Stack, workspace: Path) -> None:
    """Start a run, or continue it, and wait until it trains."""
    before = saved(workspace)
    changes = overrides() | {"train.updates": 20000, "train.checkpoint_every": 10000}
    asked = f"overrides={json.dumps(changes | {'tracking.enabled': False})}"
    words = ("prefect", "deployment", "run", "dopsd/train", "--param", asked)
    stack.run(*words, like="worker")
    until(lambda: done(workspace) >= before + 2)


def cancel_after_the_server_was_away(stack: Stack, folder: Path) -> None:
    """Prefect's worker stops to ask for cancellations then; the flow asks by itself."""
    workspace, log = folder / "workspace", folder / "stack/worker.log"
    train_for_long(stack, workspace)
    Stack.end(stack.running["prefect"])
    until(lambda: "flow run cancellation will fail" in log.read_text())
    stack.start("prefect", PREFECT_SERVER_DATABASE_CONNECTION_URL=database(folder))
    stack.until_healthy("prefect")
    listed = stack.run(
        "prefect", "flow-run", "ls", "--state", "RUNNING", "-o", "json", like="worker"
    )
    assert not saved(workspace)
    stack.run("prefect", "flow-run", "cancel", json.loads(listed)[0]["id"], like="worker")
    until(lambda: saved(workspace))
    until(lambda: not [p for p in psutil.process_iter() if "prefect.engine" in cmdline(p)])


def cmdline(process: psutil.Process) -> list[str]:
    """Words of a process of the worker's workspace; none of another, or of one that is gone."""
    try:
        return process.cmdline() if "workspace" in process.cwd() else []
    except psutil.Error:
        return []
