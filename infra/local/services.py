"""`make up`, `make down`: Prefect's server, a worker and MLflow on this machine, bound to 127.0.0.1.

Their process ids, ports and logs are in work/services/, Prefect's database in .prefect/, MLflow's in mlflow.db.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

from processes import (
    END,
    HOST,
    LOOK_EVERY,
    PIDS,
    ROOT,
    STATE,
    Service,
    Trouble,
    end,
    here,
    is_flow,
    read_state,
    start,
    wait_until_healthy,
)

POOL = "dopsd"
FLOW, GUARD = "prefect.engine", "flows/guard.py"  # in the commands of a flow run, and of what holds its stages
EXPERIMENT = "dopsd"
TELL = 3.0  # seconds for the worker to report how a run ended


def command(name: str, *words: str) -> tuple[str, ...]:
    """A program of the environment that this script runs in, whatever the path says."""
    return (str(Path(sys.executable).parent / name), *words)


def services(prefect: int, mlflow: int) -> list[Service]:
    """In the order in which they start; they end the other way round."""
    # artifacts at a path, not through the server: commands that read mlflow.db itself find them too
    places = (
        "--backend-store-uri",
        f"sqlite:///{ROOT / 'mlflow.db'}",
        "--default-artifact-root",
        (ROOT / "mlartifacts").as_uri(),
    )
    listening = ("--workers", "1", "--host", HOST, "--port", str(mlflow), "--no-serve-artifacts")
    return [
        Service(
            "prefect", command("prefect", "server", "start", "--host", HOST, "--port", str(prefect)), prefect, "/api/health"
        ),
        Service("mlflow", command("mlflow", "server", *listening, *places), mlflow, "/health"),
        Service("worker", command("prefect", "worker", "start", "--pool", POOL, "--type", "process")),
    ]


def environment(prefect: int, mlflow: int) -> dict[str, str]:
    return os.environ | {
        "PREFECT_HOME": str(ROOT / ".prefect"),
        "PREFECT_API_URL": f"http://{HOST}:{prefect}/api",
        "PREFECT_SERVER_UI_API_URL": f"http://{HOST}:{prefect}/api",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_WORKER_QUERY_SECONDS": "2",
        "PREFECT_CLI_PROMPT": "false",
        "MLFLOW_TRACKING_URI": f"http://{HOST}:{mlflow}",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DVC_NO_ANALYTICS": "1",
        "DO_NOT_TRACK": "1",
    }


def deploy(env: dict[str, str]) -> None:
    """Work pool, its limit of one run at a time in this workspace, and the deployments of prefect.yaml."""
    for words in (
        ("work-pool", "create", POOL, "--type", "process", "--overwrite"),
        ("work-pool", "set-concurrency-limit", POOL, "1"),
        ("deploy", "--all"),
    ):
        found = subprocess.run(
            command("prefect", "--no-prompt", *words), cwd=ROOT, env=env, capture_output=True, text=True, check=False
        )
        if found.returncode:
            last = (found.stdout + found.stderr).strip().splitlines()[-1:]
            raise Trouble(f"`prefect {' '.join(words)}` failed: {''.join(last)}")


def call(url: str, body: object | None = None) -> object:
    """A JSON answer; with a body, to a POST."""
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, {"Content-Type": "application/json"}), timeout=10) as answer:
        return json.loads(answer.read() or b"null")


def report_lost_runs(api: str) -> None:
    """Runs of this machine whose process is gone, after a kill of the worker or a power cut: nobody else would say it."""
    going = {"flow_runs": {"state": {"type": {"any_": ["RUNNING", "PENDING", "CANCELLING"]}}}}
    for run in call(f"{api}/flow_runs/filter", going):
        pid = str(run["infrastructure_pid"] or "").rpartition(":")[2]
        if pid.isdigit() and not is_flow(int(pid)):
            message = "its process is gone; a retry continues from the last checkpoint"
            call(f"{api}/flow_runs/{run['id']}/set_state", {"state": {"type": "CRASHED", "message": message}, "force": True})
            sys.stdout.write(f"run {run['name']} is marked as crashed: {message}\n")


def experiment_page(url: str) -> str:
    """The chart view of the project's experiment, which is made here so that the page exists before the first run."""
    api = f"{url}/api/2.0/mlflow/experiments"
    with suppress(urllib.error.HTTPError):  # it is there already
        call(f"{api}/create", {"name": EXPERIMENT})
    found = call(f"{api}/get-by-name?experiment_name={EXPERIMENT}")["experiment"]["experiment_id"]
    return f"{url}/#/experiments/{found}/runs?compareRunsMode=CHART"


def up(prefect: int, mlflow: int) -> None:
    began, state, env = time.monotonic(), read_state(), environment(prefect, mlflow)
    server, tracking, worker = services(prefect, mlflow)
    if (
        "prefect" not in state and "worker" in state and not here(FLOW)
    ):  # it has lost its server: it would not hear of cancellations
        end(int(state["worker"]["pid"]), state.pop("worker")["started"])
    start(server, env, state)
    start(tracking, env, state)
    wait_until_healthy(server, state)
    deploy(env)
    report_lost_runs(f"{server.url}/api")
    start(worker, env, state)
    wait_until_healthy(tracking, state)
    page = experiment_page(tracking.url)
    sys.stdout.write(
        f"up in {time.monotonic() - began:.0f} s\n"
        f"  Prefect      {server.url}/dashboard\n"
        f"  deployments  {server.url}/deployments\n"
        f"  MLflow       {page}\n"
        f"start a run:   {address(prefect)}prefect deployment run dopsd/train --watch\n"
        f"logs are in    {STATE.relative_to(ROOT)}/, `make down` stops all of it\n"
    )


def address(port: int) -> str:
    """What goes before a prefect command where the port is not the one that pyproject.toml has."""
    return "" if port == 4200 else f"PREFECT_API_URL=http://{HOST}:{port}/api "


def end_flows() -> None:
    """Runs in progress save and end; the worker tells the server, and a retry continues them."""
    found = here(FLOW)
    for pid in found:
        sys.stdout.write("stopping a run in progress: it saves, and a retry continues it\n")
        os.kill(pid, signal.SIGTERM)
    until = time.monotonic() + END
    while found and here(FLOW) and time.monotonic() < until:
        time.sleep(LOOK_EVERY)
    if found:
        time.sleep(TELL)


def stop_runs() -> None:
    """End runs in progress and wait until what they started has saved: a container ends with its first process."""
    end_flows()
    while here(GUARD):
        time.sleep(LOOK_EVERY)


def down() -> None:
    """Stop runs, then the worker, while there is a server to tell; then the servers."""
    state = read_state()
    end_flows()
    for name in ("worker", "mlflow", "prefect"):
        if name in state:
            end(int(state[name]["pid"]), state[name]["started"])
            sys.stdout.write(f"stopped {name}\n")
    PIDS.unlink(missing_ok=True)
    if not state:
        sys.stdout.write("nothing was running\n")


def main() -> int:
    parser = argparse.ArgumentParser(description="Start or stop Prefect, its worker and MLflow on this machine.")
    parser.add_argument("action", choices=("up", "down", "stop-runs", "report-lost-runs"))
    parser.add_argument("--prefect-port", type=int, default=4200)
    parser.add_argument("--mlflow-port", type=int, default=5000)
    given = parser.parse_args()
    try:
        if given.action == "up":
            up(given.prefect_port, given.mlflow_port)
        else:
            api = os.environ.get("PREFECT_API_URL", f"http://{HOST}:{given.prefect_port}/api")
            {"down": down, "stop-runs": stop_runs, "report-lost-runs": lambda: report_lost_runs(api)}[given.action]()
    except (Trouble, urllib.error.URLError) as error:
        sys.stderr.write(f"{given.action}: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
