"""infra/local: a taken port is said plainly, other people's processes are left alone, what ignores its end is killed."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time

import psutil
import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "infra" / "local"))
import processes
import services

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "STATE", tmp_path)
    monkeypatch.setattr(processes, "PIDS", tmp_path / "services.json")
    monkeypatch.setattr(services, "PIDS", tmp_path / "services.json")
    return tmp_path


def test_a_taken_port_is_named_with_the_command_that_takes_another(workspace):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        told = rf"port {port} is taken by another program: stop it, or `make up MLFLOW_PORT={port + 1}`"
        with pytest.raises(processes.Trouble, match=told):
            processes.start(processes.Service("mlflow", (sys.executable,), port, "/health"), dict(os.environ), {})
    assert not (workspace / "services.json").exists()


def test_a_service_is_started_once_and_ends_with_what_it_started(workspace):
    code = f"import subprocess, signal, time; signal.signal(15, signal.SIG_IGN); subprocess.Popen({SLEEP!r}); time.sleep(60)"
    service, state = processes.Service("worker", (sys.executable, "-c", code)), {}
    processes.start(service, dict(os.environ), state)
    processes.start(service, dict(os.environ), processes.read_state())
    assert [*json.loads((workspace / "services.json").read_text())] == ["worker"]
    pid, started = int(state["worker"]["pid"]), state["worker"]["started"]
    until = time.monotonic() + 10
    while not (children := psutil.Process(pid).children()) and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(0.2)
    processes.END = 0.5
    processes.end(pid, started)
    psutil.wait_procs(children, timeout=5)
    assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)
    assert processes.read_state() == {}


def test_a_number_that_another_process_has_now_is_not_ours(workspace):
    other = subprocess.Popen(SLEEP)
    processes.write_state({"mlflow": {"pid": other.pid, "started": time.time() - 3600, "port": 5000}})
    assert processes.read_state() == {}
    services.down()
    assert other.poll() is None
    other.kill()


def test_a_lost_run_is_reported_and_a_living_one_is_not(monkeypatch):
    flow = subprocess.Popen([*SLEEP, "prefect.engine"])
    gone = subprocess.Popen(["true"])
    gone.wait()
    runs = [{"id": "a", "name": "lost", "infrastructure_pid": str(gone.pid)}]
    runs += [
        {"id": "b", "name": "going", "infrastructure_pid": str(flow.pid)},
        {"id": "c", "name": "k8s", "infrastructure_pid": None},
    ]
    told = []
    monkeypatch.setattr(services, "call", lambda url, body=None: runs if url.endswith("/filter") else told.append((url, body)))
    services.report_lost_runs("http://here/api")
    flow.kill()
    assert [url for url, _ in told] == ["http://here/api/flow_runs/a/set_state"]
    assert told[0][1]["state"]["type"] == "CRASHED"
