"""Flow runs of this workspace: report those whose process is gone, and stop those in progress."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
import urllib.request
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from processes import END, LOOK_EVERY, here, is_flow, pool

FLOW, GUARD = "prefect.engine", "flows/guard.py"  # in the commands of a flow run and of its stages
CLAIM = timedelta(minutes=1)  # longest time between a worker's claim of a run and its process
REPORT = 3.0  # seconds for the worker to report how a run ended


def call(url: str, body: object | None = None) -> object:
    """Return the JSON answer of a GET or, with a body, of a POST."""
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(
        urllib.request.Request(url, data, {"Content-Type": "application/json"}), timeout=10
    ) as response:
        return json.loads(response.read() or b"null")


def is_lost(run: dict[str, Any]) -> bool:
    """Tell whether a run's process is gone, or the worker that claimed the run before its start."""
    host, _, pid = str(run["infrastructure_pid"] or "").rpartition(":")
    if pid.isdigit():
        return host in ("", socket.gethostname()) and not is_flow(int(pid))
    claimed = datetime.fromisoformat(run["state"]["timestamp"])
    return not pid and run["state_type"] == "PENDING" and datetime.now(UTC) - claimed > CLAIM


def report_lost_runs(api: str) -> None:
    """Mark runs of this machine as crashed if no process runs them.

    After a killed worker or a power cut nothing else would report them.
    """
    query = {
        "flow_runs": {"state": {"type": {"any_": ["RUNNING", "PENDING", "CANCELLING"]}}},
        "work_pools": {"name": {"any_": [pool()]}},
    }
    for run in call(f"{api}/flow_runs/filter", query):
        if is_lost(run):
            message = "the process is gone; a retry continues from the last checkpoint"
            call(
                f"{api}/flow_runs/{run['id']}/set_state",
                {"state": {"type": "CRASHED", "message": message}, "force": True},
            )
            sys.stdout.write(f"marked run {run['name']} as crashed: {message}\n")


def pause(api: str, is_paused: bool) -> None:
    """Pause or resume the work pool, so that no waiting run starts while others are stopped."""
    body = json.dumps({"is_paused": is_paused}).encode()
    request = urllib.request.Request(
        f"{api}/work_pools/{pool()}", body, {"Content-Type": "application/json"}, method="PATCH"
    )
    with (
        suppress(OSError),
        urllib.request.urlopen(request, timeout=10),
    ):  # no server, or no pool yet
        pass


def end_flows(api: str | None) -> None:
    """Make runs in progress save and end; waiting runs keep waiting.

    Args:
        api: Address of Prefect's API, to which the worker reports; None without a server.
    """
    if api:
        pause(api, True)
    pids = here(FLOW)
    for pid in pids:
        then = "another machine continues" if pool() != "dopsd" else "a retry continues"
        sys.stdout.write(f"stopping a run in progress: progress is saved, and {then}\n")
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + END
    while pids and here(FLOW) and time.monotonic() < deadline:
        time.sleep(LOOK_EVERY)
    if pids:
        time.sleep(REPORT)


def stop_runs(api: str) -> None:
    """Stop runs in progress, and wait until their stages have saved.

    A container would end them with its first process.
    """
    end_flows(api)
    while here(GUARD):
        time.sleep(LOOK_EVERY)
