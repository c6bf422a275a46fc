"""Flow runs of this workspace: those whose process is gone are reported, those in progress end and
save before a stop.
"""

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

from processes import END, LOOK_EVERY, here, is_flow

POOL = "dopsd"
FLOW, GUARD = (
    "prefect.engine",
    "flows/guard.py",
)  # in the commands of a flow run, and of what holds its stages
CLAIM = timedelta(minutes=1)  # from a worker's claim of a run to its process
TELL = 3.0  # seconds for the worker to report how a run ended


def call(url: str, body: object | None = None) -> object:
    """A JSON answer; with a body, to a POST."""
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(
        urllib.request.Request(url, data, {"Content-Type": "application/json"}), timeout=10
    ) as response:
        return json.loads(response.read() or b"null")


def is_lost(run: dict[str, Any]) -> bool:
    """Whether the process of this run is gone, or the worker that had claimed it before there was
    one.
    """
    host, _, pid = str(run["infrastructure_pid"] or "").rpartition(":")
    if pid.isdigit():
        return host in ("", socket.gethostname()) and not is_flow(int(pid))
    claimed = datetime.fromisoformat(run["state"]["timestamp"])
    return not pid and run["state_type"] == "PENDING" and datetime.now(UTC) - claimed > CLAIM


def report_lost_runs(api: str) -> None:
    """Runs of this machine that no process runs, after a kill of the worker or a power cut: nobody
    else would say it.
    """
    query = {
        "flow_runs": {"state": {"type": {"any_": ["RUNNING", "PENDING", "CANCELLING"]}}},
        "work_pools": {"name": {"any_": [POOL]}},
    }
    for run in call(f"{api}/flow_runs/filter", query):
        if is_lost(run):
            message = "its process is gone; a retry continues from the last checkpoint"
            call(
                f"{api}/flow_runs/{run['id']}/set_state",
                {"state": {"type": "CRASHED", "message": message}, "force": True},
            )
            sys.stdout.write(f"run {run['name']} is marked as crashed: {message}\n")


def pause(api: str, is_paused: bool) -> None:
    """Whether the worker starts no more runs: one that waits must not begin while its turn is being
    made by a stop.
    """
    body = json.dumps({"is_paused": is_paused}).encode()
    request = urllib.request.Request(
        f"{api}/work_pools/{POOL}", body, {"Content-Type": "application/json"}, method="PATCH"
    )
    with (
        suppress(OSError),
        urllib.request.urlopen(request, timeout=10),
    ):  # no server, or no pool yet
        pass


def end_flows(api: str | None) -> None:
    """Runs in progress save and end; the worker tells the server, if there is one. Those that wait
    go on waiting.
    """
    if api:
        pause(api, True)
    pids = here(FLOW)
    for pid in pids:
        sys.stdout.write("stopping a run in progress: it saves, and a retry continues it\n")
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + END
    while pids and here(FLOW) and time.monotonic() < deadline:
        time.sleep(LOOK_EVERY)
    if pids:
        time.sleep(TELL)


def stop_runs(api: str) -> None:
    """End runs in progress and wait until what they started has saved: a container ends with its
    first process.
    """
    end_flows(api)
    while here(GUARD):
        time.sleep(LOOK_EVERY)
