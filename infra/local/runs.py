"""Flow runs of this workspace: report those whose process is gone, and stop those in progress."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any

from processes import END, LOOK_EVERY, MACHINES, POOL, ROOT, STATE, here, is_flow, machine_name

FLOW = "prefect.engine"  # in the command of a flow run
LOCK = ROOT / "work" / "guard.lock"  # held by the commands that flows started
WORKER = "prefect.worker.name"  # label of a run: the worker that took it
CLAIM = timedelta(minutes=1)  # longest time between a worker's claim of a run and its process
STOPPED = STATE / "stopped"  # ids of the runs that stop-runs ended
ORPHAN = 120.0  # seconds for a flow to save and end after its worker was killed; usual are 15
REPORT = 3.0  # seconds for the worker to report how a run ended


def call(
    url: str,
    body: object | None = None,
    method: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Any:
    """Return the JSON answer of a GET or, with a body, of a POST or another method."""
    data = None if body is None else json.dumps(body).encode()
    sent = {"Content-Type": "application/json", **(headers or {})}
    request = urllib.request.Request(url, data, sent, method=method)
    with urllib.request.urlopen(request, timeout=10) as response:
        return json.loads(response.read() or b"null")


def ask_prefect(url: str, body: object | None = None, method: str | None = None) -> Any:
    """Call Prefect's API; its password, if it has one, is PREFECT_API_AUTH_STRING."""
    secret = os.environ.get("PREFECT_API_AUTH_STRING", "")
    word = base64.b64encode(secret.encode()).decode()
    return call(url, body, method, {"Authorization": f"Basic {word}"} if secret else None)


def is_lost(run: dict[str, Any], has_worker: bool) -> bool:
    """Tell whether a run's process is gone, or the worker that claimed the run before its start."""
    host, _, pid = str(run["infrastructure_pid"] or "").rpartition(":")
    if pid.isdigit():
        return host in ("", socket.gethostname()) and not is_flow(int(pid))
    claimed = datetime.fromisoformat(run["state"]["timestamp"])
    is_late = not has_worker or datetime.now(UTC) - claimed > CLAIM
    return not pid and run["state_type"] == "PENDING" and is_late


def set_state(api: str, run_id: str, kind: str, message: str) -> None:
    """Set a flow run's state, whatever it is."""
    state = {"type": kind, "message": message}
    ask_prefect(f"{api}/flow_runs/{run_id}/set_state", {"state": state, "force": True})


def wait_for_orphans() -> None:
    """Wait for flows whose worker is gone; they save and end by themselves."""
    deadline = time.monotonic() + ORPHAN
    if here(FLOW):
        sys.stdout.write("waiting for a run whose worker is gone; it saves and ends\n")
    while here(FLOW) and time.monotonic() < deadline:
        time.sleep(LOOK_EVERY)


def report_lost_runs(api: str, has_worker: bool = False) -> None:
    """Mark runs of this machine as crashed if no process runs them.

    After a killed worker or a power cut nothing else would report them.

    Args:
        api: Address of Prefect's API.
        has_worker: Whether a worker of this workspace lives, which may be about to start a run.
    """
    if not has_worker:
        wait_for_orphans()
    query = {
        "flow_runs": {"state": {"type": {"any_": ["RUNNING", "PENDING", "CANCELLING"]}}},
        "work_pools": {"name": {"any_": [MACHINES if machine_name() else POOL]}},
    }
    for run in ask_prefect(f"{api}/flow_runs/filter", query):
        is_here = not machine_name() or run["labels"].get(WORKER) == machine_name()
        if is_here and is_lost(run, has_worker):
            message = "the process is gone; a retry continues from the last checkpoint"
            set_state(api, run["id"], "CRASHED", message)
            sys.stdout.write(f"marked run {run['name']} as crashed: {message}\n")


def pause(api: str, is_paused: bool) -> None:
    """Pause the work pool, so that no waiting run starts while others are stopped, or resume it;
    either way it runs one at a time.
    """
    changes = {"is_paused": is_paused, "concurrency_limit": 1}
    try:
        ask_prefect(f"{api}/work_pools/{POOL}", changes, "PATCH")
    except urllib.error.HTTPError as error:
        if error.code != HTTPStatus.NOT_FOUND:  # no pool yet
            raise


def end_flows(api: str | None) -> None:
    """Make runs in progress save and end; waiting runs keep waiting.

    Args:
        api: Address of Prefect's API, to which the worker reports; None without a server, or if the
            worker has ended.
    """
    if api:
        try:
            pause(api, True)
        except OSError as error:
            sys.stdout.write(f"could not pause {POOL} ({error}); waiting runs may start\n")
    pids = here(FLOW)
    for pid in pids:
        then = "another machine continues" if machine_name() else "a retry continues"
        sys.stdout.write(f"stopping a run in progress: progress is saved, and {then}\n")
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + END
    while pids and here(FLOW) and time.monotonic() < deadline:
        time.sleep(LOOK_EVERY)
    if pids:
        time.sleep(REPORT)


def stop_runs(api: str) -> None:
    """Stop runs in progress, wait until their stages have saved, and note them for `retry_stopped`.

    A container would end them with its first process.
    """
    ids = [run_id for pid in here(FLOW) if (run_id := run_of(pid))]
    STATE.mkdir(parents=True, exist_ok=True)
    STOPPED.write_text("".join(f"{run_id}\n" for run_id in ids), encoding="utf-8")
    end_flows(api)
    with LOCK.open("a", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)


def run_of(pid: int) -> str:
    """Return the id of the flow run of a process; empty if it is gone."""
    import psutil

    with suppress(psutil.Error):
        return str(psutil.Process(pid).environ().get("PREFECT__FLOW_RUN_ID", ""))
    return ""


def retry_stopped(api: str) -> None:
    """Schedule again what `stop_runs` ended; what was cancelled, completed or deleted stays so."""
    ids = STOPPED.read_text(encoding="utf-8").split() if STOPPED.is_file() else []
    crashed = {"id": {"any_": ids}, "state": {"type": {"any_": ["CRASHED"]}}}
    for run in ask_prefect(f"{api}/flow_runs/filter", {"flow_runs": crashed}) if ids else []:
        set_state(api, run["id"], "SCHEDULED", "the worker is back; the run continues")
        sys.stdout.write(f"run {run['name']} continues\n")
    STOPPED.unlink(missing_ok=True)
