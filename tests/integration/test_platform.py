"""`make integration`: compose.yaml's pieces for real without containers give `repro`'s bytes."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from composed import LIST, Postgres, Stack, Store, needs_postgres
from waiting import until
from warm_python import warm_bin
from workspace import Workspace, overrides, results

from dopsd.core.fingerprint import sha256

pytestmark = [pytest.mark.integration, needs_postgres]
ADAPTER = "runs/sudoku/d_opsd/0/best/adapter_model.safetensors"


def test_the_embedded_default_runs_on_the_composed_platform_whose_worker_stops_and_hears(
    reproduced: Path, tmp_path: Path
):
    origin = Workspace(tmp_path / "origin")
    branch = origin.run("git", "branch", "--show-current").strip()
    given = {"POSTGRES_PASSWORD": "p4ss", "STORE_USER": "user", "STORE_PASSWORD": "w0rd"}
    given |= {"DOPSD_REPOSITORY": str(origin.folder), "DOPSD_REVISION": branch}
    stack = Stack(tmp_path / "stack", given)
    workspace = tmp_path / "workspace"
    database = Postgres(stack.ports["postgres"], stack.services["postgres"]["environment"])
    store = Store(stack.ports["minio"])
    try:
        for _ in range(2):  # safe to repeat
            stack.run(*stack.command("buckets"), like="buckets")
        for name in ("prefect", "mlflow"):
            stack.start(name)
            stack.until_healthy(name)
        path = f"{warm_bin()}{os.pathsep}{stack.env('worker')['PATH']}"
        start_worker(stack, workspace, PATH=path)
        run_and_check(stack, database, workspace)
        assert results(workspace) == results(reproduced)  # `dvc repro` gives the same bytes
        assert (workspace / "params.yaml").read_text() == (reproduced / "params.yaml").read_text()
        share(stack, workspace, tmp_path / "third")
        idle = stack.running.pop("worker")
        assert Stack.end(idle) and idle.returncode == 143
        start_worker(stack, workspace)  # its stages are processes of their own, for signals
        cancel_after_the_server_was_away(stack, workspace)
        end_in_training(stack, workspace)
    finally:
        stack.stop()
        store.stop()
        database.stop()


def start_worker(stack: Stack, workspace: Path, **changes: str) -> None:
    changes["PREFECT_WORKER_CANCELLATION_POLL_SECONDS"] = "1"
    stack.start("worker", DOPSD_WORKSPACE=str(workspace), **changes)
    stack.until_healthy("worker")


def run_and_check(stack: Stack, database: Postgres, workspace: Path) -> None:
    """The deployment from a client, and what it leaves in both databases and the store."""
    words = ("--param", f"overrides={json.dumps(overrides())}")
    words += ("--param", "evaluate_while_training=true", "--watch")
    stack.run("prefect", "deployment", "run", "dopsd/train", *words, like="worker")
    states = database.sql("prefect", "SELECT name, state_type::text FROM task_run")
    assert {"prepare sudoku", "train sudoku/d_opsd/0", "evaluate 1", "evaluate 2", "publish"} <= {
        name for name, _ in states
    }
    assert {state for _, state in states} == {"COMPLETED"}
    assert database.sql("prefect", "SELECT concurrency_limit FROM work_pool") == [(1,)]
    assert database.sql("mlflow", "SELECT status FROM runs") == [("FINISHED",)]
    listed = stack.run("python", "-c", LIST, "mlflow", like="worker").splitlines()
    assert sum(name.endswith("adapter_model.safetensors") for name in listed) == 2
    got = stack.folder / "champion"
    download = ("mlflow", "artifacts", "download", "-u", "models:/dopsd-sudoku@champion")
    stack.run(*download, "-d", str(got), like="worker")
    assert sha256(got / "adapter_model.safetensors") == sha256(workspace / ADAPTER)


def share(stack: Stack, workspace: Path, third: Path) -> None:
    """What the worker made reaches another clone through the store, byte for byte."""
    stack.run("dvc", "push", "--quiet", like="worker", cwd=workspace)
    third.mkdir()
    stack.run("dopsd-workspace", like="worker", DOPSD_WORKSPACE=str(third))
    for name in ("dvc.lock", "params.yaml"):
        shutil.copyfile(workspace / name, third / name)
    stack.run("dvc", "pull", "--quiet", like="worker", cwd=third)
    assert sha256(third / ADAPTER) == sha256(workspace / ADAPTER)


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


def cancel_after_the_server_was_away(stack: Stack, workspace: Path) -> None:
    """Prefect's worker stops to ask for cancellations then; the flow asks by itself."""
    log, before = stack.folder / "worker.log", saved(workspace)
    train_for_long(stack, workspace)
    Stack.end(stack.running["prefect"])
    (training,) = processes(workspace, "train")
    training.suspend()  # it would only take the processor from the others
    until(lambda: "flow run cancellation will fail" in log.read_text())
    training.resume()
    stack.start("prefect")
    stack.until_healthy("prefect")
    running = ("prefect", "flow-run", "ls", "--state", "RUNNING", "-o", "json")
    listed = stack.run(*running, like="worker")
    assert saved(workspace) == before
    stack.run("prefect", "flow-run", "cancel", json.loads(listed)[0]["id"], like="worker")
    until(lambda: saved(workspace) > before)
    until(lambda: not [*processes(workspace, "prefect.engine")])


def end_in_training(stack: Stack, workspace: Path) -> None:
    """SIGTERM to the worker saves the run, which goes on when the worker is back."""
    started = saved(workspace)
    train_for_long(stack, workspace)
    worker = stack.running["worker"]
    worker.terminate()
    assert worker.wait(180) == 143
    assert saved(workspace) > started
    start_worker(stack, workspace)
    until(lambda: done(workspace) > saved(workspace))


def processes(workspace: Path, word: str) -> Iterator[psutil.Process]:
    """Those of the workspace whose command has the word; none of another, or that is gone."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.cwd() == str(workspace) and word in process.cmdline():
                yield process
