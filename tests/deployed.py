"""The deployment dopsd/train, run by a worker of the local services of a workspace."""

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from ports import free_port
from prefect.testing import utilities
from workspace import CHANGES, Workspace, overrides

SERVICES = (sys.executable, "infra/local/services.py")
START = '. work/services/env; exec prefect deployment run dopsd/train --watch "$@"'


@contextlib.contextmanager
def services(workspace: Workspace) -> Iterator[str]:
    """Start Prefect, MLflow and a worker on free ports, and stop them; yield what `up` says."""
    ports = (f"--{name}-port={free_port()}" for name in ("prefect", "mlflow"))
    try:
        yield workspace.run(*SERVICES, "up", *ports)
    finally:
        stopped = workspace.run(*SERVICES, "down")
    assert stopped.count("stopped ") == 3 and "killed" not in stopped


@contextlib.contextmanager
def prefect_server(database: Path) -> Iterator[None]:
    """Prefect's own harness for tests, with a database that has its tables."""

    def filled() -> str:
        folder = tempfile.mkdtemp()
        shutil.copyfile(database, Path(folder) / "prefect-test.db")
        return folder

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utilities, "mkdtemp", filled)
        with utilities.prefect_test_harness(server_startup_timeout=300):
            yield


def submit(workspace: Workspace, **parameters: object) -> subprocess.CompletedProcess[str]:
    """Run the deployment with these parameters to its end."""
    words = [f"--param={name}={json.dumps(value)}" for name, value in parameters.items()]
    here = {"cwd": workspace.folder, "env": workspace.env}
    command = ["sh", "-c", START, "sh", *words]
    return subprocess.run(command, capture_output=True, text=True, **here)


def submit_changes(workspace: Workspace, changes: Mapping[str, object], **more: object) -> None:
    """Run the deployment with changed keys of params.yaml; it must succeed."""
    found = submit(workspace, overrides=changes, **more)
    assert found.returncode == 0, found.stdout + found.stderr


def run_by(entry: str, workspace: Workspace, changes: Mapping[str, object]) -> None:
    """Run all stages with changed small settings, by `dvc` or by `deployment`."""
    if entry == "dvc":
        workspace.write(**CHANGES | dict(changes))
        workspace.repro()
    else:
        with services(workspace):
            submit_changes(workspace, overrides(**changes))
