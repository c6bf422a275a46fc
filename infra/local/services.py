"""`make up`, `make down`: Prefect's server, a worker and MLflow on this machine, bound to 127.0.0.1.

Their process ids, ports and logs are in work/services/, Prefect's database in .prefect/, MLflow's in mlflow.db.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STATE = ROOT / "work" / "services"
PIDS = STATE / "services.json"
HOST = "127.0.0.1"
POOL = "dopsd"
EXPERIMENT = "dopsd"
START = 120.0  # seconds to become healthy
END = 40.0  # seconds to end: the worker waits for what it cancels
TELL = 3.0  # seconds for the worker to report how a run ended
LOOK_EVERY = 0.25


class Trouble(Exception):
    """One line for the person who started this."""


@dataclass(frozen=True)
class Service:
    """A server or worker: its command, and where it says that it is well (a worker has no such place)."""

    name: str
    words: tuple[str, ...]
    port: int | None = None
    health: str = ""

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"


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


def is_healthy(service: Service) -> bool:
    with (
        suppress(urllib.error.URLError, OSError),
        urllib.request.urlopen(f"{service.url}{service.health}", timeout=2) as answer,
    ):
        return answer.status == 200
    return False


def is_taken(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def is_alive(pid: int, started: float) -> bool:
    """Whether the process that we started is still there: a number may have been given to another one."""
    import psutil

    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - started) < 5 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def read_state() -> dict[str, dict[str, float]]:
    """What was started here and is still alive, by name."""
    if not PIDS.is_file():
        return {}
    known = json.loads(PIDS.read_text())
    return {name: found for name, found in known.items() if is_alive(int(found["pid"]), found["started"])}


def write_state(state: dict[str, dict[str, float]]) -> None:
    STATE.mkdir(parents=True, exist_ok=True)
    half = PIDS.with_suffix(".tmp")
    half.write_text(json.dumps(state, indent=1) + "\n")
    half.rename(PIDS)


def start(service: Service, env: dict[str, str], state: dict[str, dict[str, float]]) -> None:
    """Start it where it is not running; its process id is on disk before it can be waited for."""
    if service.name in state:
        if service.port and int(state[service.name]["port"]) != service.port:
            raise Trouble(f"{service.name} runs on port {state[service.name]['port']:.0f}; `make down` first")
        return
    if service.port and is_taken(service.port):
        variable = f"{service.name.upper()}_PORT"
        raise Trouble(f"port {service.port} is taken by another program: stop it, or `make up {variable}={service.port + 1}`")
    STATE.mkdir(parents=True, exist_ok=True)
    with (STATE / f"{service.name}.log").open("a") as log:
        process = subprocess.Popen(
            service.words, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    state[service.name] = {"pid": process.pid, "started": time.time(), "port": service.port or 0}
    write_state(state)


def wait_until_healthy(service: Service, state: dict[str, dict[str, float]]) -> None:
    until = time.monotonic() + START
    while not is_healthy(service):
        log = STATE / f"{service.name}.log"
        if not is_alive(int(state[service.name]["pid"]), state[service.name]["started"]):
            raise Trouble(f"{service.name} ended while it started; its last words are in {log}")
        if time.monotonic() > until:
            raise Trouble(f"{service.name} is not healthy after {START:.0f} s; see {log}, then `make down`")
        time.sleep(LOOK_EVERY)


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


def is_flow(pid: int) -> bool:
    import psutil

    try:
        return any("prefect" in word for word in psutil.Process(pid).cmdline())
    except psutil.Error:
        return False


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


def flows_here() -> list[int]:
    """Process ids of flow runs in this workspace, also of those whose worker is gone."""
    import psutil

    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if "prefect.engine" in process.cmdline() and Path(process.cwd()) == ROOT:
                found.append(process.pid)
    return found


def end_flows() -> None:
    """Runs in progress save and end; the worker tells the server, and a retry continues them."""
    found = flows_here()
    for pid in found:
        sys.stdout.write("stopping a run in progress: it saves, and a retry continues it\n")
        os.kill(pid, signal.SIGTERM)
    until = time.monotonic() + END
    while found and flows_here() and time.monotonic() < until:
        time.sleep(LOOK_EVERY)
    if found:
        time.sleep(TELL)


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


def end(pid: int, started: float) -> None:
    """SIGTERM to the service, SIGKILL to its group after END seconds."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    until = time.monotonic() + END
    while is_alive(pid, started) and time.monotonic() < until:
        time.sleep(LOOK_EVERY)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def main() -> int:
    parser = argparse.ArgumentParser(description="Start or stop Prefect, its worker and MLflow on this machine.")
    parser.add_argument("action", choices=("up", "down"))
    parser.add_argument("--prefect-port", type=int, default=4200)
    parser.add_argument("--mlflow-port", type=int, default=5000)
    given = parser.parse_args()
    try:
        up(given.prefect_port, given.mlflow_port) if given.action == "up" else down()
    except (Trouble, urllib.error.URLError) as error:
        sys.stderr.write(f"{given.action}: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
