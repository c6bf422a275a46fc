"""`make integration-machines`: three workers, one killed and one paused, give one's results."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from composed import Postgres, needs_postgres
from ports import free_port
from small_settings import SHORT_RUN
from waiting import until
from workspace import Workspace

pytestmark = [pytest.mark.machines, needs_postgres]
METHODS, SEEDS = ["d_opsd", "rft"], [0, 1, 2]
SETTINGS = SHORT_RUN | {"train.updates": 12, "train.checkpoint_every": 2}
SETTINGS |= {"method.rft.keep_threshold": 0.0, "matrix.methods": METHODS, "matrix.seeds": SEEDS}
PAUSE = 60.0  # seconds; a machine counts as lost after 90
LONG = 2400.0  # seconds; an upper bound on a machine that is busy with other things
SERVICES = (sys.executable, "infra/local/services.py")


def processes_in(folder: Path) -> list[psutil.Process]:
    """All processes of a workspace: worker, flow, dopsd, DVC and stage."""
    found = []
    for process in psutil.process_iter():
        try:
            if Path(process.cwd()).is_relative_to(folder) and process.pid != os.getpid():
                found.append(process)
        except psutil.Error:
            continue
    return found


def signal_all(folder: Path, number: int) -> None:
    """Signal the whole of a machine, from the worker down; again for what started meanwhile."""
    for _ in range(3):
        for process in processes_in(folder):
            try:
                process.send_signal(number)
            except psutil.Error:
                continue


def trained(folder: Path) -> int:
    """Updates of the training in progress in a workspace; 0 if there is none."""
    try:
        return int(json.loads((folder / "work/train.json").read_text())["done"])
    except (OSError, ValueError, KeyError):
        return 0


def results(folder: Path) -> dict[str, bytes]:
    """All results that DVC has of a workspace, by path; not the checkpoints of training."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted((folder / "runs").rglob("*"))
        if path.is_file() and not path.parent.name.startswith("step-")
    }


def workspace(folder: Path, store: Path) -> Workspace:
    made = Workspace(folder, is_shipped=True)
    made.dvc("remote", "add", "--local", "--default", "store", str(store))
    return made


@pytest.fixture
def alone(tmp_path: Path) -> dict[str, bytes]:
    """Results of one machine."""
    single = workspace(tmp_path / "alone", tmp_path / "own-store")
    changes = [w for k, v in SETTINGS.items() for w in ("--set", f"{k}={json.dumps(v)}")]
    single.run("dopsd", "params", *changes)
    single.repro()
    return results(single.folder)


@pytest.fixture
def database() -> Iterator[Postgres]:
    who = {"POSTGRES_USER": "dopsd", "POSTGRES_PASSWORD": "p4ss", "POSTGRES_DB": "prefect"}
    server = Postgres(free_port(), who)
    yield server
    server.stop()


def test_a_comparison_survives_a_killed_and_a_paused_machine(
    tmp_path: Path, database: Postgres, alone: dict[str, bytes]
):
    store = tmp_path / "store"
    center = workspace(tmp_path / "center", store)
    machines = [workspace(tmp_path / name, store) for name in ("one", "two", "three")]
    prefect, mlflow = free_port(), free_port()
    addresses = {"server": prefect, "mlflow": mlflow}
    center.env["PREFECT_SERVER_DATABASE_CONNECTION_URL"] = (
        f"postgresql+asyncpg://dopsd:p4ss@127.0.0.1:{database.port}/prefect"
    )
    try:
        center.run(*SERVICES, "up", f"--prefect-port={prefect}", f"--mlflow-port={mlflow}")
        for machine in machines:
            address = [f"--{n}=http://127.0.0.1:{p}" for n, p in addresses.items()]
            machine.run(*SERVICES, "up", *address, f"--name={machine.folder.name}")
        started = time.monotonic()
        comparison = compare(center, tmp_path / "copies")
        killed, paused, _ = machines
        until(lambda: trained(killed.folder) >= 4 or comparison.poll() is not None, seconds=LONG)
        signal_all(killed.folder, signal.SIGKILL)
        until(lambda: trained(paused.folder) >= 2 or comparison.poll() is not None, seconds=LONG)
        signal_all(paused.folder, signal.SIGSTOP)
        time.sleep(PAUSE)
        signal_all(paused.folder, signal.SIGCONT)
        said, _ = comparison.communicate(timeout=LONG)
        assert comparison.returncode == 0, said
        print(f"six cells on three machines, one killed: {time.monotonic() - started:.0f} s")
        until(lambda: not unfinished(database), seconds=LONG)
    finally:
        for each in [*machines, center]:
            subprocess.run([*SERVICES, "down"], cwd=each.folder, env=each.env, check=False)
    assert results(center.folder) == alone
    runs = database.sql("prefect", "SELECT name, state_type::text FROM flow_run")
    cells = sorted(name for name, state in runs if state == "COMPLETED" and name.startswith("sud"))
    assert cells == sorted(f"sudoku/{m}/{seed}" for m in METHODS for seed in SEEDS)
    logs = "\n".join(text for (text,) in database.sql("prefect", "SELECT message FROM log"))
    assert "one: the machine does not answer any more; another machine continues" in logs
    assert "checkpoints of this run up to update" in logs  # from where the killed machine was
    assert (center.folder / "reports/compare/comparison.html").is_file()


def unfinished(database: Postgres) -> list[tuple[str, str]]:
    """Runs that have not ended; Prefect itself ends those that nobody cancels, after minutes."""
    ended = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
    runs = database.sql("prefect", "SELECT name, state_type::text FROM flow_run")
    return [run for run in runs if run[1] not in ended]


def compare(center: Workspace, copies: Path) -> subprocess.Popen[str]:
    """Start the comparison from the workspace of the server."""
    changes = {key: value for key, value in SETTINGS.items() if not key.startswith("matrix.")}
    changes |= {"checkpoints.remote": str(copies), "tracking.enabled": True}
    parameters = {"methods": METHODS, "seeds": SEEDS, "overrides": changes}
    words = [w for k, v in parameters.items() for w in ("--param", f"{k}={json.dumps(v)}")]
    start = '. work/services/env; exec prefect deployment run dopsd-compare/compare --watch "$@"'
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    here = {"cwd": center.folder, "env": center.env}
    return subprocess.Popen(["sh", "-c", start, "sh", *words], **here, **streams)
