"""infra/local: taken ports, other people's processes, what ignores its end, lost runs."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest
from conftest import ROOT
from ports import free_port
from waiting import until

sys.path.insert(0, str(ROOT / "infra" / "local"))
import pages
import processes
import runs
import services

from dopsd.tracking.client import local_address

pytestmark = pytest.mark.full

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "STATE", tmp_path)
    monkeypatch.setattr(processes, "PIDS", tmp_path / "services.json")
    monkeypatch.setattr(services, "PIDS", tmp_path / "services.json")
    monkeypatch.setattr(services, "STATE", tmp_path)
    monkeypatch.setattr(services, "MACHINE", tmp_path / "machine")
    monkeypatch.setattr(runs, "REPORT", 0.0)
    monkeypatch.setattr(processes, "ROOT", tmp_path)  # else a run of this checkout would be stopped
    return tmp_path


def test_a_taken_port_is_named_with_the_command_that_takes_another(workspace):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        told = f"port {port} is taken by another program; stop that program, or run"
        told += f" `make up PREFECT_PORT=1 MLFLOW_PORT={port + 1}`"
        with pytest.raises(processes.Trouble, match=told):
            services.up(processes.HOST, 1, port)
    assert not (workspace / "services.json").exists()  # nor is the other one started


def test_a_service_is_started_once_and_ends_with_what_it_started(workspace, monkeypatch):
    code = "import subprocess, signal, time; signal.signal(15, signal.SIG_IGN);"
    code += f" subprocess.Popen({SLEEP!r}); time.sleep(60)"
    service, state = processes.Service("worker", (sys.executable, "-c", code)), {}
    processes.start(service, dict(os.environ), state)
    processes.start(service, dict(os.environ), processes.read_state())
    assert [*json.loads((workspace / "services.json").read_text())] == ["worker"]
    pid, started = int(state["worker"]["pid"]), state["worker"]["started"]
    until(lambda: psutil.Process(pid).children())
    children = psutil.Process(pid).children()
    monkeypatch.setattr(processes, "END", 0.5)
    assert not processes.end(pid, started)
    _, alive = psutil.wait_procs(children, timeout=60)
    assert all(child.status() == psutil.STATUS_ZOMBIE for child in alive)
    assert processes.read_state() == {}


def test_a_service_ends_when_asked_though_a_shell_started_make_up_in_the_background(workspace):
    """Such a command ignores SIGINT, as its children do; the worker sends itself SIGINT."""
    code = "import os, pathlib, signal, time; pathlib.Path('ready').touch(); time.sleep(600)"
    code = code.replace("time;", "time; signal.signal(15, lambda *_: os.kill(os.getpid(), 2));")
    state: dict = {}
    service = processes.Service("worker", (sys.executable, "-c", code))
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        processes.start(service, dict(os.environ), state)
    finally:
        signal.signal(signal.SIGINT, before)
    until((workspace / "ready").exists)
    assert processes.end(int(state["worker"]["pid"]), state["worker"]["started"])


def test_the_servers_addresses_are_written_for_a_shell_to_source(workspace):
    processes.write_env(services.environment("127.0.0.1", 4300, 5100))
    shell = f". {workspace / 'env'}; echo $PREFECT_API_URL $MLFLOW_TRACKING_URI"
    said = subprocess.run(["sh", "-c", shell], capture_output=True, text=True).stdout
    assert said == "http://127.0.0.1:4300/api http://127.0.0.1:5100\n"


def test_a_number_that_another_process_has_now_is_not_ours(workspace):
    other = subprocess.Popen(SLEEP)
    known = {"pid": other.pid, "started": time.time() - 3600, "port": 5000}
    processes.write_state({"mlflow": known})
    assert processes.read_state() == {}
    services.down()
    assert other.poll() is None
    other.kill()


def test_a_run_is_ended_though_its_server_is_gone(workspace):
    flow = subprocess.Popen([*SLEEP, "prefect.engine"], cwd=workspace)
    services.down()
    assert flow.wait(60) == -signal.SIGTERM


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("tracking:\n  experiment: My runs\n", "My runs"),
        *((text, "dopsd") for text in ("tracking: {}", "", "a: [")),
    ],
)
def test_the_pages_are_those_of_the_experiment_in_params(tmp_path, monkeypatch, text, name):
    asked = []

    def call(url: str, body: object | None = None) -> object:
        asked.append((url.rpartition("/")[2], body))
        return {"experiment": {"experiment_id": "7"}}

    (tmp_path / "params.yaml").write_text(text)
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    monkeypatch.setattr(pages, "call", call)
    ((_, page),) = pages.experiment_pages("http://127.0.0.1:1")
    query = f"get-by-name?experiment_name={name.replace(' ', '+')}"
    assert asked == [("create", {"name": name}), (query, None)] and "/experiments/7/" in page


def flow_run(name: str, pid: int | str | None, since: str = "") -> dict[str, object]:
    """What the server tells of a run that a worker claimed, and began if it has a number."""
    return {
        "id": name,
        "name": name,
        "labels": {runs.WORKER: name},
        "infrastructure_pid": None if pid is None else str(pid),
        "state_type": "PENDING" if pid is None else "RUNNING",
        "state": {"timestamp": since or datetime.now(UTC).isoformat()},
    }


def test_a_lost_run_is_reported_and_a_living_one_is_not(monkeypatch):
    flow = subprocess.Popen([*SLEEP, "prefect.engine"])
    gone = subprocess.Popen(["true"])
    gone.wait()
    pids = {"lost": gone.pid, "going": flow.pid, "elsewhere": f"other-host:{gone.pid}"}
    known = [flow_run(name, pid) for name, pid in (pids | {"claimed": None}).items()]
    known.append(flow_run("forgotten", None, "2026-01-01T00:00:00+00:00"))
    told = []

    def call(url: str, body: dict, *_: object) -> object:
        return known if url.endswith("/filter") else told.append((url, body))

    monkeypatch.setattr(runs, "call", call)
    runs.report_lost_runs("http://here/api", has_worker=True)
    flow.kill()
    expected = [f"http://here/api/flow_runs/{name}/set_state" for name in ("lost", "forgotten")]
    assert [url for url, _ in told] == expected
    assert told[0][1]["state"]["type"] == "CRASHED"


def test_a_machine_that_joined_reports_its_own_lost_runs_only(workspace, monkeypatch):
    gone = subprocess.Popen(["true"])
    gone.wait()
    known = [flow_run(name, gone.pid) for name in ("gpu", "other")]
    asked = []

    def call(url: str, body: object, *_: object) -> object:
        asked.append((url, body))
        return known

    (workspace / "machine").write_text("gpu\n")
    monkeypatch.setattr(processes, "MACHINE", workspace / "machine")
    monkeypatch.setattr(runs, "call", call)
    runs.report_lost_runs("http://here/api")
    assert asked[0][1]["work_pools"]["name"]["any_"] == ["machines"]
    assert [url for url, _ in asked[1:]] == ["http://here/api/flow_runs/gpu/set_state"]


def test_what_a_dead_worker_had_claimed_is_lost_at_once_and_its_flow_may_end_first(
    workspace, monkeypatch, capsys
):
    told = []

    def call(url: str, body: object, *_: object) -> object:
        assert flow.poll() is not None  # it reports its own end
        return [flow_run("claimed", None)] if url.endswith("/filter") else told.append(body)

    flow = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1)", "prefect.engine"])
    monkeypatch.setattr(processes, "ROOT", Path.cwd())
    monkeypatch.setattr(runs, "call", call)
    runs.report_lost_runs("http://here/api")
    assert [body["state"]["type"] for body in told] == ["CRASHED"]
    assert "waiting for a run whose worker is gone" in capsys.readouterr().out


def test_a_run_that_the_stop_of_a_worker_ended_is_asked_for_and_continues(workspace, monkeypatch):
    asked, told = [], []

    def call(url: str, body: object | None = None, *_: object) -> object:
        if not url.endswith("/filter"):
            kind = body.get("state", {}).get("type")
            return told.append((url.rpartition("/flow_runs/")[2], kind))
        asked.append(body["flow_runs"])
        return [{"id": run_id, "name": "otter"} for run_id in asked[-1]["id"]["any_"]]

    monkeypatch.setattr(runs, "call", call)
    monkeypatch.setattr(runs, "STATE", workspace)
    monkeypatch.setattr(runs, "STOPPED", workspace / "stopped")
    env = os.environ | {"PREFECT__FLOW_RUN_ID": "run-1"}
    flow = subprocess.Popen([*SLEEP, "prefect.engine"], cwd=workspace, env=env)
    runs.stop_runs("http://here/api")
    assert flow.wait(60) == -signal.SIGTERM
    told.clear()
    runs.retry_stopped("http://here/api")
    runs.retry_stopped("http://here/api")  # once only
    assert [each["id"]["any_"] for each in asked] == [["run-1"]]
    assert asked[0]["state"]["type"]["any_"] == ["CRASHED"]
    assert told == [("run-1/set_state", "SCHEDULED")]


@pytest.mark.parametrize("left", [".git/index.lock", ".git", ""])
def test_a_workspace_is_checked_out_though_its_first_checkout_was_killed(tmp_path, left):
    git = ("git", "-c", "user.name=test", "-c", "user.email=test@localhost")
    origin, there = tmp_path / "an origin", tmp_path / "a workspace"
    for words in (("init", "-q", "-b", "main"), ("commit", "-q", "--allow-empty", "-m", "one")):
        origin.mkdir(exist_ok=True)
        subprocess.run([*git, *words], cwd=origin, check=True)
    if left:
        (there / ".git").mkdir(parents=True)
    if left.endswith("lock"):
        subprocess.run([*git, "init", "-q"], cwd=there, check=True)
        (there / left).write_text("")
    env = {"DOPSD_REPOSITORY": str(origin), "DOPSD_WORKSPACE": str(there), "DOPSD_DVC_REMOTE": ""}
    script = ROOT / "infra/compose/workspace.sh"
    subprocess.run(["sh", str(script)], env=os.environ | env, check=True, cwd=tmp_path)
    head = (*git, "rev-parse", "HEAD")
    first, second = (subprocess.check_output(head, cwd=folder) for folder in (origin, there))
    assert first == second


def test_commands_find_the_server_that_this_folder_started_or_joined(workspace, monkeypatch):
    monkeypatch.setattr("dopsd.tracking.client.SERVICES", workspace / "services.json")
    assert local_address("prefect") == ""
    processes.write_state({"prefect": {"port": 4300, "host": "10.0.0.1"}})
    assert local_address("prefect") == "http://10.0.0.1:4300"
    processes.write_state({"worker": {"port": 0, "prefect": "http://far:4200"}})
    assert local_address("prefect") == "http://far:4200" and local_address("mlflow") == ""


def test_the_commands_of_containers_need_no_installed_dopsd(tmp_path):
    """An init container runs them before the packages of the workspace are on the path."""
    script = str(ROOT / "infra/local/services.py")
    words = [sys.executable, "-S", script, "make-automation"]
    packages = os.path.dirname(os.path.dirname(psutil.__file__))  # without -S, dopsd is among them
    env = {"PREFECT_API_URL": f"http://127.0.0.1:{free_port()}/api", "PYTHONPATH": packages}
    found = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert found.returncode == 2 and "Connection refused" in found.stderr, found.stderr
