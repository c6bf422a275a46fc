"""`dopsd doctor`: what stands in the way is named with what to do, and the status says so."""

import http.server
import json
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from conftest import small_params, write_params

from dopsd.cli.main import main
from dopsd.config.params import Params
from dopsd.pipeline.doctor import card, machine, services


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """The hub is not asked: tests need no network."""
    monkeypatch.setattr(services, "HUB", "http://127.0.0.1:9")
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def params(**changes: object) -> Params:
    return Params.model_validate(small_params(**changes))


def test_the_embedded_default_is_ready_here(project, capsys):
    assert main(["doctor"]) == 0
    screen = capsys.readouterr().out.split()
    assert "torch" in screen and "NO" not in screen and "name local files" in " ".join(screen)


def test_what_is_missing_is_named_and_the_status_is_one(here, monkeypatch, capsys):
    write_params(
        data__sudoku__test_file="data/external/nothere.csv", tracking__uri="http://127.0.0.1:9"
    )
    monkeypatch.setattr(machine, "find_spec", lambda name: None)
    assert main(["doctor"]) == 1
    assert "tracking, files (D707)" in capsys.readouterr().err


def test_a_mistake_in_params_yaml_is_a_row_of_the_table(project, capsys):
    path = Path("params.yaml")
    path.write_text(path.read_text().replace("micro_batch_states", "micro_batch_state"))
    assert main(["doctor"]) == 1
    told = capsys.readouterr()
    assert "not ready: params" in told.err and "torch" in told.out


def test_a_package_that_is_not_there_or_breaks_the_platform_matters_by_what_it_is_for(monkeypatch):
    def version(name: str) -> str:
        if name == "fastapi":
            return "0.165.0"
        raise machine.PackageNotFoundError(name)

    monkeypatch.setattr(machine, "version", version)
    found = {f.name: f for f in machine.packages(params())}
    assert found["torch"].is_fit is False and found["prefect"].is_fit is None
    fastapi = found["fastapi"]
    assert fastapi.is_fit is False and fastapi.message == "0.165.0"
    assert "needs <0.151,>=0.139" in fastapi.advice


def test_too_little_disk_and_a_kernel_that_cannot_run_are_reported(monkeypatch):
    monkeypatch.setattr("dopsd.pipeline.dvc.disk_room.free_bytes", lambda: 1e9)
    assert next(machine.disk(params())).message == "1 GB free; for 1 missing run about 2 GB"
    unmade = params(model__path="base/unmade")  # pretraining makes it
    assert next(machine.disk(unmade)).message == "1 GB free; for 1 missing run about 2 GB"
    # 4 GB for each of 2 checkpoints and their copies until DVC's are links, and 2 x 2 moments
    monkeypatch.setattr("dopsd.pipeline.dvc.disk_room.checkpoint_bytes", lambda params, shape: 4e9)
    whole = params(train__weights="all")
    found = next(machine.disk(whole))
    assert found.message == "1 GB free; for 1 missing run about 34 GB" and not found.is_fit
    monkeypatch.setattr(machine, "find_spec", lambda name: None)
    kernels = {"model__attention": "flash_attention_2", "model__kernels": "liger"}
    found = machine.kernels(params(model__dtype="bfloat16", **kernels))
    assert {f.name: f.is_fit for f in found} == {"attention": False, "kernels": False}


class Quiet(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(handler: type[Quiet]) -> Iterator[int]:
    """Serve on a free port, which is yielded."""
    with http.server.HTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def test_a_taken_port_and_a_server_that_answers_are_seen(monkeypatch):
    class Healthy(Quiet):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/health" else 404)
            self.end_headers()

    with serving(Healthy) as port:
        monkeypatch.setattr(services, "PORTS", {"MLflow": port, "Prefect": port})
        ours, foreign = services.ports(params())
        assert (ours.is_fit, ours.message) == (True, f"MLflow answers on 127.0.0.1:{port}")
        used = f"another program uses 127.0.0.1:{port}"
        assert (foreign.is_fit, foreign.message) == (None, used)
        asked = params(tracking__uri=f"http://127.0.0.1:{port}")
        assert next(services.tracking_server(asked)).is_fit
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setattr(services, "PORTS", {"MLflow": free.getsockname()[1]})
        assert next(services.ports(params())).is_fit


def test_a_prefect_server_without_a_worker_or_unknown_to_the_shell_is_seen(monkeypatch, tmp_path):
    status = ["OFFLINE"]

    class Prefect(Quiet):
        def answer(self, body: object) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def do_GET(self) -> None:
            self.answer(self.path == "/api/health")

        def do_POST(self) -> None:
            is_of_workers = self.path.startswith("/api/work_pools/dopsd/workers")
            self.answer([{"name": "w", "status": status[0]}] if is_of_workers else [])

    monkeypatch.chdir(tmp_path)
    (silent,) = services.prefect_server(params())
    assert silent.is_fit is None and "`prefect server start` starts one" in silent.advice
    Path("infra/local").mkdir(parents=True)  # as in a checkout
    (silent,) = services.prefect_server(params())
    assert "`make up` starts one" in silent.advice
    services.SOURCED.parent.mkdir(parents=True)
    services.SOURCED.touch()
    (silent,) = services.prefect_server(params())
    assert "`source work/services/env` sets PREFECT_API_URL" in silent.advice
    with serving(Prefect) as port:
        monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{port}/api")
        assert [f.is_fit for f in services.prefect_server(params())] == [True, None]
        status[0] = "ONLINE"
        assert [f.is_fit for f in services.prefect_server(params())] == [True, True]
        monkeypatch.delenv("PREFECT_API_URL")
        killed = subprocess.Popen(["sleep", "60"])
        started = {"prefect": {"port": port}, "worker": {"pid": killed.pid}}
        (services.SOURCED.parent / "services.json").write_text(json.dumps(started))
        named, _ = services.prefect_server(params())
        assert named.is_fit is None
        assert "`prefect` uses port 4200: `source work/services/env`" in named.advice
        assert [f.is_fit for f in services.prefect_server(params())] == [None, True]
        killed.kill()  # its server still calls it online, until a heartbeat is missed
        killed.wait()
        _, worker = services.prefect_server(params())
        assert worker.is_fit is None and "has ended" in worker.message


def test_a_card_whose_logits_are_off_by_more_than_rounding_is_unfit():
    cpu = torch.device("cpu")
    (same,) = card.logits(cpu)
    assert same.is_fit and "by 0.0e+00" in same.message
    expected = torch.arange(1.0, 9)
    for wrong in (expected * 1.001, expected * float("nan")):
        found = card._compared("gpu computes", "the CPU", wrong, expected, card.SINGLE)
        assert found.is_fit is False and "make gpu" in found.advice


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        ({"GIT_TEST_ASSUME_DIFFERENT_OWNER": "1"}, "git: detected dubious ownership in repository"),
        ({"PATH": ""}, "git is not installed, so the commit is not recorded"),
        ({"GIT_DIR": "nowhere"}, "git: not a git repository: 'nowhere'"),
    ],
)
def test_a_commit_that_git_does_not_tell_is_said_by_train_and_doctor(
    project, monkeypatch, capsys, broken, told
):
    subprocess.run(["git", "init", "-q"], check=True)
    assert list(machine.commit(params())) == []  # no commit yet is no fault
    for name, value in broken.items():
        monkeypatch.setenv(name, value)
    (finding,) = machine.commit(params())
    assert finding.is_fit is None and "not recorded" in finding.advice
    assert finding.message.startswith(told.partition(", so")[0])
    write_params(train__updates=1)
    assert main(["train"]) == 0
    said = capsys.readouterr().err
    assert f"train: {told}" in said and ("safe.directory" in said) == ("dubious" in told)


def test_a_folder_without_a_repository_has_no_commit_and_no_fault(project, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(project.parent))
    assert list(machine.commit(params())) == []
