"""`make up SERVER=http://HOST:4200`: run a worker of this workspace for a server elsewhere.

All machines are workers of the work pool `machines`, to which `dopsd-compare` submits its runs.
Each worker takes one run at a time.
"""

from __future__ import annotations

import re
import socket
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from http import HTTPStatus
from urllib.parse import urlsplit

from processes import (
    LOOK_EVERY,
    MACHINE,
    MACHINES,
    ROOT,
    START,
    STATE,
    Service,
    State,
    Trouble,
    command,
    end,
    here,
    is_alive,
    machine_name,
    prefect,
    read_state,
    start,
    write_env,
)
from runs import FLOW, ask_prefect, end_flows, report_lost_runs


def default_name() -> str:
    """Return this machine's and this folder's name, in the characters of a name for Prefect."""
    return re.sub(r"[^a-z0-9]+", "-", f"{socket.gethostname()}-{ROOT.name}".lower()).strip("-")


def check(server: str, mlflow: str, name: str, state: State) -> None:
    """Check what a machine needs before anything is changed.

    Raises:
        Trouble: if an address does not answer, this workspace runs servers, or DVC has no remote.
    """
    if not re.fullmatch("[a-z0-9]+(-[a-z0-9]+)*", name):
        raise Trouble(f"NAME={name}: use lowercase letters, digits and single dashes")
    if "prefect" in state:
        raise Trouble("this folder runs servers of its own; run `make down` first")
    if "worker" in state:
        worker = state["worker"]
        now = (machine_name(), worker.get("prefect"), worker.get("mlflow"))
        if now != (name, server, mlflow):
            raise Trouble(
                f"this folder's worker runs as {now[0]} for SERVER={now[1]} MLFLOW={now[2]}; run"
                " `make down` first"
            )
    for key, url, health in (("SERVER", server, "/api/health"), ("MLFLOW", mlflow, "/health")):
        try:
            with urllib.request.urlopen(url + health, timeout=10):
                pass
        except (OSError, ValueError) as error:
            raise Trouble(
                f"{key}={url} does not answer ({error}); is `make up` running there, and the port"
                " open or forwarded (`ssh -N -L 4200:127.0.0.1:4200 -L 5000:127.0.0.1:5000 HOST`)?"
            ) from None
    # not at the top: containers run this folder's commands before dopsd is on their path
    from dopsd.pipeline.dvc.command import remote_problem

    if why := remote_problem(ROOT):
        raise Trouble(why)
    if name != machine_name() and name in online_workers(f"{server}/api"):
        raise Trouble(f"NAME={name} is that of another machine, at work; choose another NAME")


def online_workers(api: str) -> list[str]:
    """Return the names of the machines whose workers report to a server."""
    try:
        workers = ask_prefect(f"{api}/work_pools/{MACHINES}/workers/filter", {})
    except urllib.error.HTTPError as error:
        if error.code == HTTPStatus.NOT_FOUND:  # no machine has joined yet
            return []
        raise
    return [worker["name"] for worker in workers if worker["status"] == "ONLINE"]


def wait_until_online(api: str, name: str, state: State) -> None:
    """Wait until the server knows this machine's worker.

    Raises:
        Trouble: if the worker ended, or did not report in START seconds.
    """
    deadline = time.monotonic() + START
    while name not in online_workers(api):
        worker, log = state["worker"], STATE / "worker.log"
        if not is_alive(int(worker["pid"]), worker["started"]) or time.monotonic() > deadline:
            raise Trouble(f"the worker ended or does not report; see {log}, then run `make down`")
        time.sleep(LOOK_EVERY)


def join(server: str, mlflow: str | None, name: str | None, env: dict[str, str]) -> None:
    """Start a worker of this workspace for a server elsewhere.

    Args:
        server: Address of Prefect's server.
        mlflow: Address of MLflow; None: port 5000 of the same host.
        name: Name of this machine; None: that of the host and the folder.
        env: Environment of the worker, without addresses.

    Raises:
        Trouble: if something is missing, or a `prefect` command fails.
    """
    started_at, state = time.monotonic(), read_state()
    server = server.rstrip("/").removesuffix("/api")
    host = urlsplit(server).hostname or ""
    mlflow, name = (mlflow or f"http://{host}:5000").rstrip("/"), name or default_name()
    check(server, mlflow, name, state)
    sys.stdout.write(f"joining {server} as {name}, about 20 seconds\n")
    sys.stdout.flush()
    env |= {"PREFECT_API_URL": f"{server}/api", "MLFLOW_TRACKING_URI": mlflow}
    STATE.mkdir(parents=True, exist_ok=True)
    MACHINE.write_text(f"{name}\n", encoding="utf-8")
    prefect("work-pool", "create", MACHINES, "--type", "process", "--overwrite", env=env)
    report_lost_runs(env["PREFECT_API_URL"], "worker" in state)
    write_env(env)
    words = ("--pool", MACHINES, "--type", "process", "--name", name, "--limit", "1")
    is_new = "worker" not in state
    service = Service("worker", command("prefect", "worker", "start", *words))
    start(service, env, state, prefect=server, mlflow=mlflow)
    wait_until_online(env["PREFECT_API_URL"], name, state)
    joined = f"joined {server} in {time.monotonic() - started_at:.0f} s"
    sys.stdout.write(
        f"machine {name} {joined if is_new else f'had joined {server}'}\n"
        "  takes runs of  comparisons, one at a time\n"
        f"  log            {(STATE / 'worker.log').relative_to(ROOT)}\n"
        "which runs:    `prefect artifact inspect machines`; `dopsd attach RUN` shows one\n"
        "stop:          make down   (a run in progress saves; another machine continues it)\n"
    )


def leave(api: str | None, state: State) -> None:
    """End the worker, which would take the next run, and then the run in progress, which saves.

    Args:
        api: Address of Prefect's API; None if it does not answer.
        state: What runs here.
    """
    if here(FLOW):
        sys.stdout.write("stopping a run in progress: it saves, and another machine continues\n")
    if worker := state.get("worker"):
        end(int(worker["pid"]), worker["started"])
    end_flows(None)
    if api:
        with suppress(OSError):  # else the server takes the machine for one at work for 90 s
            ask_prefect(f"{api}/work_pools/{MACHINES}/workers/{machine_name()}", method="DELETE")
