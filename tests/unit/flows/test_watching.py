"""`dopsd run` and its view, on a server that answers badly for a while, and at a Ctrl-C."""

import json
import socket
import struct
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from uuid import uuid4

import pytest
from conftest import ROOT, write_params
from prefect.settings import (
    PREFECT_API_REQUEST_TIMEOUT,
    PREFECT_API_URL,
    PREFECT_CLIENT_MAX_RETRIES,
    temporary_settings,
)

from dopsd.cli import runs as commands
from dopsd.cli.main import main
from dopsd.core.errors import DopsdError
from flows import runs, watching

RUN, DEPLOYMENT = str(uuid4()), str(uuid4())
SLOW = 1.0  # seconds after which the client gives up a request of a server that may be silent


class Server(ThreadingHTTPServer):
    """Prefect's API for one run; `trouble`: what its next requests get, such as a reset."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.trouble: list[int | str] = []
        self.submitted = 0
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
