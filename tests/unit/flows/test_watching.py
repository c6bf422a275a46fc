"""`dopsd run` and its view: a server that answers badly, a Ctrl-C, task runs that become stages."""

import json
import socket
import struct
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from uuid import UUID, uuid4

import pytest
from conftest import ROOT, write_params
from prefect.client.schemas.objects import Artifact, State, StateType, TaskRun
from prefect.settings import (
    PREFECT_API_REQUEST_TIMEOUT,
    PREFECT_API_URL,
    PREFECT_CLIENT_MAX_RETRIES,
    temporary_settings,
)

from dopsd.cli import runs as commands
from dopsd.cli.main import main
from dopsd.core.errors import DopsdError
from dopsd.pipeline.run import view as run_view
from flows import runs, watching
from flows.watching import accuracy_of, stages_of

RUN, DEPLOYMENT = str(uuid4()), str(uuid4())
SLOW = 1.0  # seconds after which the client gives up a request of a server that may be silent


class Server(ThreadingHTTPServer):
    """Prefect's API for one run; `trouble`: what its next requests get, such as a reset."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.trouble: list[int | str] = []
        self.submitted, self.is_deployed = 0, True
        self.has_ended = Event()


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if "/csrf-token" in self.path:  # as of a server without them
            return self.send({}, 404)
        if not self.path.startswith("/api/"):
            return self.send({"detail": "Not Found"}, 404)
        if self.path == f"/api/flow_runs/{RUN}" and self.server.trouble:
            return self.fail(self.server.trouble.pop(0))
        if self.path.endswith("/create_flow_run"):
            self.server.submitted += 1
            return self.send(run("SCHEDULED"))
        if self.path.startswith("/api/deployments/name/"):
            if not self.server.is_deployed:
                return self.send({}, 404)
            return self.send({"id": DEPLOYMENT, "name": "train", "flow_id": str(uuid4())})
        self.send(run("COMPLETED") if self.path == f"/api/flow_runs/{RUN}" else [])

    do_POST = do_GET

    def fail(self, how: int | str) -> None:
        if how == "silence":
            self.server.has_ended.wait(3 * SLOW)
        elif how == "reset":  # closing with this option sends a reset
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.shutdown(socket.SHUT_RD)
        else:
            self.send({"detail": "asked for by the test"}, int(how))
        self.close_connection = True

    def send(self, value: object, status: int = 200) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def run(kind: str) -> dict[str, object]:
    state = {"type": kind, "name": kind.title(), "id": str(uuid4())}
    return {"id": RUN, "name": "amber-lynx", "flow_id": str(uuid4()), "state": state} | {
        "state_type": kind,
        "state_name": kind.title(),
        "parameters": {},
    }


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Server]:
    serving = Server()
    Thread(target=serving.serve_forever, args=(0.02,), daemon=True).start()
    address = f"http://127.0.0.1:{serving.server_address[1]}/api"
    monkeypatch.setattr(watching, "LOOK_EVERY", 0.01)
    monkeypatch.setattr(runs, "LOOK_EVERY", 0.01)
    patience = SLOW if "silence" in request.node.name else 300.0
    changes = {PREFECT_API_URL: address, PREFECT_CLIENT_MAX_RETRIES: 0}
    with temporary_settings(changes | {PREFECT_API_REQUEST_TIMEOUT: patience}):
        yield serving
    serving.has_ended.set()
    serving.shutdown()
    serving.server_close()


@pytest.fixture
def folder(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_params()
    (project / "flows").symlink_to(ROOT / "flows")
    monkeypatch.setattr(commands, "SERVERS", ())
    return project


@pytest.mark.parametrize("trouble", [503, 500, "reset", "silence"])
@pytest.mark.full
def test_a_view_outlives_a_short_failure_of_the_server(folder, server, trouble, capsys):
    server.trouble = [trouble, trouble]
    assert main(["run"]) == 0, capsys.readouterr().err
    shown = capsys.readouterr().out.splitlines()
    assert shown.count(f"note: {watching.AWAY}") == 1
    assert "run: amber-lynx: completed" in shown and not server.trouble


def test_what_the_server_refuses_ends_the_view_with_its_reason(folder, server, refusal):
    server.trouble = [404] * 9
    assert "refused" in refusal("run") and len(server.trouble) == 8


def test_a_server_without_the_deployment_gets_its_pool_and_the_deployment(folder, server, refusal):
    server.is_deployed = False
    assert "run `prefect work-pool create dopsd --type process` once, then" in refusal("run")


def test_an_address_without_api_is_named(server, capsys):
    address = f"http://127.0.0.1:{server.server_address[1]}"
    with temporary_settings({PREFECT_API_URL: address}):
        assert main(["attach"]) == 2
    err = capsys.readouterr().err
    assert f"PREFECT_API_URL: {address} lacks /api" in err and "has no deployment" not in err


@pytest.mark.parametrize(
    ("command", "address", "advice"),
    [
        ("run", "http://127.0.0.1:9/api", "run `prefect server start --port 9`, or"),
        ("attach", "http://localhost:9/api", "run `prefect server start --port 9`, or"),
        ("cancel", "http://host.invalid:4200/api", "start it on host.invalid, or"),
    ],
)
def test_a_server_that_is_away_is_temporary_and_to_be_started_where_it_was(
    folder, command, address, advice, capsys
):
    with temporary_settings({PREFECT_API_URL: address}):
        assert main([command]) == 75
    assert f"no Prefect server at {address}; {advice}" in capsys.readouterr().err


@pytest.mark.parametrize(("trouble", "status"), [("silence", 75), (503, 75), (404, 2)])
@pytest.mark.full
def test_only_a_server_that_is_away_or_fails_is_temporary(server, trouble, status):
    server.trouble = [trouble] * 9
    with pytest.raises(DopsdError) as raised, runs.connection("attach") as client:
        client.read_flow_run(RUN)
    assert raised.value.exit_code == status
    assert trouble != "silence" or "does not answer" in str(raised.value)


def interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("moment", ["page", "check", "Display", "_report_end"])
def test_ctrl_c_after_the_submission_never_says_that_the_same_command_continues(
    folder, server, moment, monkeypatch, capsys
):
    module = runs if moment == "page" else watching
    monkeypatch.setattr(module, moment, interrupted)
    assert main(["run"]) == 130
    err = capsys.readouterr().err.splitlines()[-1]
    assert "left amber-lynx" in err and "`dopsd attach amber-lynx`" in err and "(D905)" in err
    assert "same command" not in err and server.submitted == 1


def test_ctrl_c_while_the_server_is_asked_for_a_run_says_where_to_look(
    folder, server, monkeypatch, capsys
):
    monkeypatch.setattr(runs.SyncPrefectClient, "create_flow_run_from_deployment", interrupted)
    assert main(["run"]) == 130
    err = capsys.readouterr().err
    assert "may have started" in err and "`dopsd attach`" in err and "same command" not in err


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
KEY = "sudoku/d_opsd/0"


def task(
    task_name: str, kind: str, start: int | None, end: int | None = None, **state: str
) -> TaskRun:
    """A task run that began and ended so many seconds after noon."""
    at = [None if s is None else NOON + timedelta(seconds=s) for s in (start, end)]
    full = State(type=StateType[kind], **state)
    facts = {"state": full, "state_type": full.type, "state_name": full.name}
    facts |= {"start_time": at[0], "end_time": at[1]}
    return TaskRun(id=uuid4(), name=task_name, task_key="t", dynamic_key="0", **facts)


def rows(tasks: list[TaskRun], *expected: str, bars: dict[UUID, Artifact] | None = None) -> dict:
    stages = stages_of(tasks, bars or {}, list(expected))
    return {s.name: (s.state, s.seconds if s.state == "done" else None, s.note) for s in stages}


def test_tasks_fill_the_expected_stages_and_keep_their_order():
    tasks = [
        task("settings", "COMPLETED", 0, 2),
        task("prepare sudoku", "COMPLETED", 2, 4, name="Cached"),
        task(f"train {KEY}", "RUNNING", 4),
        task("select-4f1", "PENDING", None),
    ]
    bar = Artifact(type="progress", data=25.0, description="train: 25 of 100, 0.5/s, 2:30 left")
    found = rows(
        tasks, "settings", "prepare sudoku", f"train {KEY}", "publish", bars={tasks[2].id: bar}
    )
    assert found == {
        "settings": (run_view.DONE, 2.0, ""),
        "prepare sudoku": (run_view.CACHED, None, ""),
        f"train {KEY}": (run_view.RUNNING, None, "25 of 100, 0.5/s, 2:30 left"),
        "publish": (run_view.WAITING, None, ""),
    }


def test_evaluations_of_checkpoints_are_one_stage_of_the_run_that_was_trained_before():
    tasks = [
        task(f"train {KEY}", "COMPLETED", 0, 10),
        task("evaluate 25", "COMPLETED", 10, 20),
        task("evaluate 50", "COMPLETED", 10, 30),
        task("train sudoku/rft/0", "COMPLETED", 30, 40),
        task("evaluate 25", "FAILED", 40, 50),
        task("evaluate-7ab", "PENDING", None),
    ]
    found = rows(tasks)
    assert found[f"evaluate {KEY}"] == (run_view.DONE, 20.0, "")
    assert found["evaluate sudoku/rft/0"] == (run_view.FAILED, None, "0 of 2")
    tasks[4] = task("evaluate 25", "COMPLETED", 40, 50)
    assert rows(tasks)["evaluate sudoku/rft/0"][2].startswith("1 of 2, ")


def test_a_failed_task_and_one_that_waits_for_another_attempt_say_so():
    tasks = [
        task("base sudoku", "FAILED", 0, 1),
        task(f"train {KEY}", "SCHEDULED", 1, name="AwaitingRetry"),
    ]
    assert rows(tasks) == {
        "base sudoku": (run_view.FAILED, None, ""),
        f"train {KEY}": (run_view.WAITING, None, "failed; waits for another attempt"),
    }


def test_the_accuracy_is_that_of_the_last_evaluation_or_of_the_selected_checkpoint():
    first, last = "update 25: 61.2% [58, 64]", "update 50: 60.1% [57, 63]"
    tasks = [
        task("evaluate 50", "COMPLETED", 10, 30, message=last),
        task("evaluate 25", "COMPLETED", 10, 20, message=first),
    ]
    assert accuracy_of(tasks, []) == last and accuracy_of([], []) == ""
    row = {"update": 25, "accuracy %": "61.2", "95% interval": "58.0 to 64.0"}
    row["problems"] = "256 validation"
    table = Artifact(
        key="checkpoints-sudoku-d-opsd-0",
        type="table",
        data=json.dumps([row | {"note": "base"}, row | {"note": "selected"}]),
        created=NOON + timedelta(seconds=40),
    )
    selected = "update 25, selected: 61.2% [58.0, 64.0] on 256 validation problems"
    assert accuracy_of(tasks, [table]) == selected
    later = task("evaluate 25", "COMPLETED", 50, 60, message="update 25: 70.0% [68, 72]")
    assert accuracy_of([*tasks, later], [table]) == "update 25: 70.0% [68, 72]"
    cached = task("evaluate 25", "COMPLETED", 5, 6, name="Cached", message="up to date")
    assert accuracy_of([cached], []) == ""
