"""`make integration`: machines that join Prefect's server, which has a password here."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ports import free_port
from workspace import Workspace

pytestmark = pytest.mark.integration
SERVICES = (sys.executable, "infra/local/services.py")
SECRET = {"PREFECT_SERVER_API_AUTH_STRING": "ann:p4ss", "PREFECT_API_AUTH_STRING": "ann:p4ss"}


def refused(workspace: Workspace, *words: str) -> str:
    """Error message of a join that must fail."""
    here = {"cwd": workspace.folder, "env": workspace.env}
    found = subprocess.run([*SERVICES, "up", *words], capture_output=True, text=True, **here)
    assert found.returncode == 2 and "Traceback" not in found.stderr, found.stdout + found.stderr
    return found.stderr


def test_a_machine_joins_with_a_password_a_store_and_a_name_of_its_own(
    prefect_database: Path, empty_database: Path, tmp_path: Path
):
    center, one, two = (Workspace(tmp_path / name) for name in ("center", "one", "two"))
    for each in (center, one, two):
        each.env |= SECRET
    shutil.copytree(prefect_database.parent, center.folder / ".prefect")
    shutil.copyfile(empty_database, center.folder / "mlflow.db")
    prefect, mlflow = free_port(), free_port()
    server = f"--server=http://127.0.0.1:{prefect}"
    address = (server, f"--mlflow=http://127.0.0.1:{mlflow}", "--name=gpu")
    try:
        center.run(*SERVICES, "up", f"--prefect-port={prefect}", f"--mlflow-port={mlflow}")
        assert "DVC has no default remote here" in refused(one, *address)
        for each in (one, two):
            each.dvc("remote", "add", "--local", "--default", "store", "https://store/dvc")
        assert "no http address" in refused(one, *address)
        for each in (one, two):
            each.dvc("remote", "add", "--local", "--force", "-d", "store", str(tmp_path / "store"))
        assert "machine gpu joined" in one.run(*SERVICES, "up", *address)
        assert "machine gpu had joined" in one.run(*SERVICES, "up", *address)
        assert "NAME=gpu is that of another machine, at work" in refused(two, *address)
        other = (server, f"--mlflow=http://localhost:{mlflow}", "--name=gpu")
        assert "this folder's worker runs as gpu for" in refused(one, *other)
        wrong = two.env | {"PREFECT_API_AUTH_STRING": "ann:wrong"}
        two.env, right = wrong, two.env
        assert "401" in refused(two, server, address[1], "--name=gpu2")
        two.env = right
        one.run(*SERVICES, "down")
        assert "machine gpu joined" in two.run(*SERVICES, "up", *address)  # the name is free
    finally:
        for each in (one, two, center):
            subprocess.run([*SERVICES, "down"], cwd=each.folder, env=each.env, check=False)
