"""`make integration`: compose.yaml's pieces run for real without containers: PostgreSQL, S3,
Prefect, MLflow, a worker, DVC. They give the bytes of `dvc repro`, and the idle worker ends.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from composed import LIST, Postgres, Stack, Store, postgres_programs
from warm_python import warm_bin
from workspace import Workspace, overrides, results

from dopsd.core.fingerprint import sha256

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        postgres_programs() is None,
        reason="needs PostgreSQL's server programs (Debian: postgresql)",
    ),
]
ADAPTER = "runs/sudoku/d_opsd/0/best/adapter_model.safetensors"


def test_the_embedded_default_runs_on_the_composed_platform(reproduced: Path, tmp_path: Path):
    origin = Workspace(tmp_path / "origin")
    branch = origin.run("git", "branch", "--show-current").strip()
    secrets = {"POSTGRES_PASSWORD": "p4ss", "STORE_USER": "user", "STORE_PASSWORD": "w0rd"}
    stack = Stack(
        tmp_path / "stack",
        secrets | {"DOPSD_REPOSITORY": str(origin.folder), "DOPSD_REVISION": branch},
    )
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
        stack.start("worker", DOPSD_WORKSPACE=str(workspace), PATH=path)
        run_and_check(stack, database, workspace)
        assert results(workspace) == results(reproduced)  # `dvc repro` gives the same bytes
        assert (workspace / "params.yaml").read_text() == (reproduced / "params.yaml").read_text()
        share(stack, workspace, tmp_path / "third")
        idle = stack.running.pop("worker")
        assert Stack.end(idle) and idle.returncode == 143
    finally:
        stack.stop()
        store.stop()
        database.stop()


def run_and_check(stack: Stack, database: Postgres, workspace: Path) -> None:
    """The deployment, from a client that knows the server alone; what it leaves in both databases
    and the store.
    """
    stack.until_healthy("worker")
    words = ("--param", f"overrides={json.dumps(overrides())}")
    words += ("--param", "evaluate_while_training=true", "--watch")
    stack.run("prefect", "deployment", "run", "dopsd/train", *words, like="worker")
    states = database.sql("prefect", "SELECT name, state_type::text FROM task_run")
    assert {"prepare sudoku", "train sudoku/d_opsd/0", "evaluate 1", "evaluate 2", "publish"} <= {
        name for name, _ in states
    }
    assert {state for _, state in states} == {"COMPLETED"}
    assert database.sql("mlflow", "SELECT status FROM runs") == [("FINISHED",)]
    listed = stack.run("python", "-c", LIST, "mlflow", like="worker").splitlines()
    assert sum(name.endswith("adapter_model.safetensors") for name in listed) == 2
    got = stack.folder / "champion"
    stack.run(
        "mlflow",
        "artifacts",
        "download",
        "-u",
        "models:/dopsd-sudoku@champion",
        "-d",
        str(got),
        like="worker",
    )
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
