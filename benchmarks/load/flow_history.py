"""Prefect's server with a long history of runs: `dopsd attach`, the server's lists, its memory.

    python benchmarks/load/flow_history.py [--postgres] [runs ...]

`make up` serves a checkout; each run has ten task runs, 50 log lines and a progress artifact, as
a short `dopsd/train` leaves. Then one run with 1000 evaluations, and a queue longer than a page of
the server. Fails if the first, the running or a queued run is not found by name.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import psutil
from measured_command import QUIET, ROOT, Measured, measure, say, table

sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
SIZES = (125, 250, 500)
TASKS = ("settings", "prepare sudoku", "base sudoku", "train {key}", "evaluate 1", "evaluate 2")
TASKS += ("select {key}", "test {key}", "report {key}", "publish")
LOGS = 50
THREADS = 1
CHECKPOINTS = 1000
QUEUED = 250  # waiting runs, more than a page of the server's answers
SECRETS = {"POSTGRES_USER": "dopsd", "POSTGRES_PASSWORD": "p4ss", "POSTGRES_DB": "prefect"}


class History:
    """Makes runs through the API of a server, in the states that a worker would report."""

    def __init__(self, api: str) -> None:
        self.refused = 0  # requests that the server was too busy for
        self.client = httpx.Client(base_url=api, timeout=600)
        self.deployment = self.get("/deployments/name/dopsd/train")["id"]

    def get(self, path: str) -> Any:
        """Return the answer of a GET."""
        return self.client.get(path).raise_for_status().json()

    def post(self, path: str, body: object, method: str = "POST") -> Any:
        """Return the answer to a POST; a server that is too busy is asked again, as workers do."""
        for wait in (1, 2, 4, 8, 16, 32, 64):
            answer = self.client.request(method, path, json=body)
            if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                break
            self.refused += 1
            time.sleep(wait)
        answer.raise_for_status()
        return answer.json() if answer.content else None

    def queued(self, name: str, seconds: float = 0.0) -> str:
        """Submit a run, and return its id."""
        at = datetime.now(UTC) + timedelta(seconds=seconds)
        state = {"type": "SCHEDULED", "state_details": {"scheduled_time": at.isoformat()}}
        body = {"name": name, "state": state}
        return str(self.post(f"/deployments/{self.deployment}/create_flow_run", body)["id"])

    def set_state(self, run: str, state: str) -> None:
        """Report the state of a run."""
        body = {"state": {"type": state, "name": state.title()}, "force": True}
        self.post(f"/flow_runs/{run}/set_state", body)

    def task(self, run: str, number: int, name: str, state: str = "COMPLETED") -> None:
        """Report a task run of a run."""
        body = {"flow_run_id": run, "task_key": name, "dynamic_key": str(number), "name": name}
        details = {"type": state, "name": state.title()}
        self.post("/task_runs/", body | {"state": details})

    def finished(self, number: int) -> None:
        """Make a run that has completed."""
        run = self.queued(f"run-{number}")
        self.set_state(run, "RUNNING")
        for place, name in enumerate(TASKS):
            self.task(run, place, name.format(key=f"sudoku/d_opsd/{number}"))
        now = datetime.now(UTC).isoformat()
        line = {"name": "dopsd", "level": 20, "timestamp": now, "flow_run_id": run}
        self.post("/logs/", [line | {"message": f"train: {n}/50"} for n in range(LOGS)])
        bar = {"key": f"train-{number}", "type": "progress", "data": 100.0, "flow_run_id": run}
        self.post("/artifacts/", bar)
        self.set_state(run, "COMPLETED")

    def count(self) -> int:
        """Return how many runs the server has."""
        return int(self.post("/flow_runs/count", {}))


@contextmanager
def server(folder: Path, is_postgres: bool) -> Iterator[Any]:
    """Serve a checkout by `make up`, with Prefect's database in sqlite or PostgreSQL."""
    from composed import Postgres
    from deployed import services
    from ports import free_port
    from workspace import Workspace

    with ExitStack() as stack:
        workspace = Workspace(folder)
        workspace.env |= {"PREFECT_LOGGING_LEVEL": "WARNING"}
        if is_postgres:
            database = Postgres(port := free_port(), SECRETS)
            stack.callback(database.stop)
            url = f"postgresql+asyncpg://dopsd:p4ss@127.0.0.1:{port}/prefect"
            workspace.env["PREFECT_API_DATABASE_CONNECTION_URL"] = url
        stack.enter_context(services(workspace))
        yield workspace


def server_mb(workspace: Any) -> float:
    """Return the memory of Prefect's server, in MB."""
    import json

    pid = json.loads((workspace.folder / "work/services/services.json").read_text())["prefect"]
    process = psutil.Process(int(pid["pid"]))
    members = [process, *process.children(recursive=True)]
    return sum(member.memory_full_info().pss for member in members) / 2**20


def ask(history: History, size: int, memory: float) -> list[Measured]:
    """Return how long the lists of the UI take, and the worker's question for work."""
    listing = {"limit": 50, "sort": "START_TIME_DESC"}
    tasks = {"limit": 200, "flow_runs": {"name": {"any_": ["run-0"]}}}
    questions = {
        "list of runs": ("/flow_runs/filter", listing),
        "list of task runs": ("/task_runs/filter", tasks),
        "work of the pool": ("/work_pools/dopsd/get_scheduled_flow_runs", {"limit": 1}),
    }
    rows = []
    for name, (path, body) in questions.items():
        started = time.monotonic()
        for _ in range(5):
            history.post(path, body)
        rows.append(Measured(name, size, (time.monotonic() - started) / 5, 0.0, memory))
        say(f"{size:>7} {name:20} {rows[-1].seconds:8.3f} s {memory:8.0f} MB")
    return rows


def attach(workspace: Any, size: int, run: str, name: str) -> Measured:
    """Return what `dopsd attach` takes for a run that has ended."""
    words = [sys.executable, "-m", "dopsd", "attach", run]
    env = workspace.env | {"PYTHONPATH": f"{workspace.folder}"} | {"OMP_NUM_THREADS": "1"}
    row = measure(workspace.folder, size, words, name, env)
    said = (workspace.folder / "output.txt").read_text()
    assert f"{run}: completed" in said, f"attach {run}: {said[-500:]}"
    return row


def measured(workspace: Any, history: History, before: int, size: int) -> list[Measured]:
    """Return what questions take once the server has `size` finished runs."""
    started = time.monotonic()
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(history.finished, range(before, size)))
    say(
        f"{size:>7} made in {time.monotonic() - started:.0f} s; refused with 503: {history.refused}"
    )
    found = history.count()
    assert found == size, f"{found} runs of {size}"
    rows = ask(history, size, server_mb(workspace))
    rows.append(attach(workspace, size, "run-0", "attach the first"))
    return [*rows, attach(workspace, size, f"run-{size - 1}", "attach the last")]


def with_many_checkpoints(workspace: Any, history: History) -> Measured:
    """Return what `dopsd attach` takes for a run with CHECKPOINTS evaluations."""
    run = history.queued("many-checkpoints")
    history.set_state(run, "RUNNING")
    history.task(run, 0, "train sudoku/d_opsd/0")
    with ThreadPoolExecutor(THREADS) as pool:
        numbers = range(1, CHECKPOINTS + 1)
        list(pool.map(lambda n: history.task(run, n, f"evaluate {n}"), numbers))
    history.set_state(run, "COMPLETED")
    row = attach(workspace, CHECKPOINTS, "many-checkpoints", "attach many checkpoints")
    said = (workspace.folder / "output.txt").read_text()
    assert "evaluate sudoku/d_opsd/0: done" in said, said
    return row


def check_queue(history: History) -> None:
    """Check that the running run is found behind QUEUED later ones, and the first queued one."""
    from prefect.client.orchestration import get_client

    from flows import runs

    running = history.queued("running")
    history.set_state(running, "RUNNING")
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda n: history.queued(f"queued-{n}", 3600 + n), range(QUEUED)))
    with get_client(sync_client=True) as client:
        for name in (None, "running", running[:13], "queued-0", f"queued-{QUEUED - 1}", "run-0"):
            found = runs.find(client, "attach", name).name
            expected = "running" if name in (None, running[:13]) else name
            assert found == expected, f"attach {name}: found {found}"
    say(f"found behind {QUEUED} queued runs: the running one, queued ones, the first one")


def main() -> None:
    is_postgres = "--postgres" in sys.argv
    sizes = tuple(int(word) for word in sys.argv[1:] if word.isdigit()) or SIZES
    os.environ |= {name: value for name, value in QUIET.items() if name != "PYTHONPATH"}
    with tempfile.TemporaryDirectory() as place, server(Path(place) / "w", is_postgres) as space:
        lines = (space.folder / "work/services/env").read_text().splitlines()
        api = next(line.partition("=")[2] for line in lines if "PREFECT_API_URL" in line)
        os.environ["PREFECT_API_URL"] = space.env["PREFECT_API_URL"] = api
        history = History(api)
        history.post("/work_pools/dopsd", {"is_paused": True}, "PATCH")
        rows = [
            row
            for before, size in zip((0, *sizes), sizes, strict=False)
            for row in measured(space, history, before, size)
        ]
        rows.append(with_many_checkpoints(space, history))
        check_queue(history)
    kind = "PostgreSQL" if is_postgres else "sqlite"
    say(f"\nNothing lost, Prefect on {kind}: {sizes} runs.\n\n{table(rows)}")


if __name__ == "__main__":
    main()
