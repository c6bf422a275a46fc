"""What every process of dopsd has in its environment."""

import getpass
import http.server
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import httpx
import pytest
import requests
from conftest import ROOT, small_params
from ports import free_port
from waiting import until

from dopsd.cli.main import main
from dopsd.config.loading import load_params
from dopsd.config.params import Params
from dopsd.core import environment
from dopsd.core.environment import MEETING, MPI, RANKED, bypass_proxies, refuse_leftovers
from dopsd.core.errors import DopsdError
from dopsd.distributed import process_group
from dopsd.pipeline.doctor import machine
from flows import runs


class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    do_PATCH = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The port of a server of this machine, with no variable about proxies."""
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    with http.server.HTTPServer(("127.0.0.1", 0), Healthy) as healthy:
        threading.Thread(target=healthy.serve_forever, args=(0.02,), daemon=True).start()
        yield str(healthy.server_address[1])
        healthy.shutdown()


@pytest.mark.parametrize(
    ("variable", "excepted"),
    [
        ("http_proxy", {}),
        ("HTTP_PROXY", {"NO_PROXY": "corp.example, 10.0.0.1"}),
        ("all_proxy", {"no_proxy": "corp.example"}),
        ("http_proxy", {"no_proxy": "", "NO_PROXY": "*"}),
    ],
)
def test_no_client_sends_a_request_to_this_machine_to_a_proxy(
    server, monkeypatch, variable, excepted
):
    for name, value in ({variable: f"http://127.0.0.1:{free_port()}"} | excepted).items():
        monkeypatch.setenv(name, value)
    bypass_proxies()
    for host in ("127.0.0.1", "localhost"):
        url = f"http://{host}:{server}/"
        assert urllib.request.build_opener().open(url, timeout=300).status == 200
        assert httpx.get(url).status_code == requests.get(url, timeout=300).status_code == 200
    assert all(
        name.strip() in os.environ["no_proxy"] for name in " ".join(excepted.values()).split(",")
    )


def test_without_a_proxy_the_environment_stays(server):
    before = dict(os.environ)
    bypass_proxies("10.0.0.1")
    assert os.environ == before


def test_a_proxy_that_the_client_of_prefect_cannot_use_is_named(server, monkeypatch):
    monkeypatch.setattr(runs.server, "is_reachable", lambda: True)
    for proxy in ("socks://127.0.0.1:9", "socks5://127.0.0.1:9"):
        monkeypatch.setenv("all_proxy", proxy)
        with pytest.raises(DopsdError, match=r"run: all_proxy: .*SOCKS|scheme.*; unset it"):
            runs.connection("run").__enter__()


def test_every_command_and_the_script_of_the_servers_bypass_proxies(server, tmp_path, monkeypatch):
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{server}/api")
    script = [sys.executable, str(ROOT / "infra/local/services.py"), "resume"]
    found = subprocess.run(script, cwd=tmp_path, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert main(["explain", "D505"]) == 0 and "127.0.0.1" in os.environ["NO_PROXY"]


@pytest.mark.skipif(not shutil.which("localedef"), reason="makes a locale")
@pytest.mark.full
def test_params_yaml_stays_utf_8_in_another_locale(project):
    made = ["localedef", "-i", "en_US", "-f", "ISO-8859-1", str(project / "en_US.ISO-8859-1")]
    if subprocess.run(made, capture_output=True).returncode:
        pytest.skip("no sources of locales")
    env = os.environ | {"LOCPATH": str(project), "LC_ALL": "en_US.ISO-8859-1"}
    env = {name: value for name, value in env.items() if name != "PYTHONUTF8"}
    path = project / "größe → 1.yaml"
    text = Path("params.yaml").read_text(encoding="utf-8")
    path.write_text(f"# für Größe — → 日本\n{text}", encoding="utf-8")
    for words in (["params", "--set", "train.checkpoint_every=3"], ["check"]):
        command = [sys.executable, "-m", "dopsd", *words, "--params", path.name]
        found = subprocess.run(command, env=env, capture_output=True, encoding="utf-8")
        assert found.returncode == 0, found.stderr
    assert path.read_text(encoding="utf-8").startswith("# für Größe — → 日本\n")
    assert load_params(path).train.checkpoint_every == 3


TORCHRUN = {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"}
TORCHRUN |= {"MASTER_ADDR": "h", "MASTER_PORT": "1"}


@pytest.mark.parametrize(
    ("left", "told"),
    [
        ({}, ""),
        (TORCHRUN, ""),
        ({"WORLD_SIZE": "1"}, ""),
        ({"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"}, ""),
        ({"MASTER_ADDR": "h", "MASTER_PORT": "1", "PMI_SIZE": "1"}, ""),
        ({"WORLD_SIZE": "2"}, "but RANK, LOCAL_RANK, MASTER_PORT, MASTER_ADDR are not set"),
        (TORCHRUN | {"LOCAL_RANK": ""}, "WORLD_SIZE is 2, but LOCAL_RANK is not set"),
        (TORCHRUN | {"WORLD_SIZE": "two"}, "WORLD_SIZE=two is no number"),
        ({"WORLD_SIZE": "-1"}, "WORLD_SIZE=-1 is no number"),
        ({"WORLD_SIZE": "0"}, "RANK is 0, and WORLD_SIZE is 0"),
        ({"RANK": "1"}, "RANK is 1, and WORLD_SIZE is 1: left over by a launcher? `unset RANK`"),
        (TORCHRUN | {"RANK": "2"}, "RANK is 2, and WORLD_SIZE is 2"),
        ({"OMPI_COMM_WORLD_SIZE": "4"}, "OMPI_COMM_WORLD_SIZE is 4, but WORLD_SIZE, RANK, "),
    ],
)
def test_what_a_launcher_left_in_the_environment_is_named(monkeypatch, left, told):
    for name in (*RANKED, MEETING, *MPI):
        monkeypatch.delenv(name, raising=False)
    for name, value in left.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(DopsdError, match=re.escape(told)) if told else nullcontext():
        refuse_leftovers()


@pytest.mark.parametrize("command", ["train", "evaluate", "prepare"])
def test_stages_refuse_a_number_of_processes_that_were_not_started(
    project, monkeypatch, refusal, command
):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "dopsd: WORLD_SIZE is 2, but RANK," in refusal(command)


def test_settings_of_accelerate_in_the_environment_do_not_count(monkeypatch):
    from dopsd.distributed.process_group import all_processes

    for name in ("USE_CPU", "USE_DEEPSPEED", "USE_MEGATRON_LM", "MIXED_PRECISION"):
        monkeypatch.setenv(f"ACCELERATE_{name}", "maybe")
    assert all_processes().mixed_precision == "no"


def test_python_without_docstrings_is_refused_in_one_line():
    env = os.environ | {"PYTHONOPTIMIZE": "2"}
    words = [sys.executable, "-m", "dopsd", "check"]
    ran = subprocess.run(words, env=env, check=False, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1)
    assert "PYTHONOPTIMIZE" in ran.stderr and "(D110)" in ran.stderr


def test_a_process_says_for_whom_it_waits(monkeypatch, capsys):
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(process_group, "SOON", 0.01)
    with process_group._telling(1, 9):
        until(sys.stderr.getvalue, every=0.01)
    with process_group._telling(0, 9):
        time.sleep(0.1)
    told = "train: waiting for 1 other process at h:1 (WORLD_SIZE), for 9 s at most\n"
    assert capsys.readouterr().err == told


def test_a_user_id_without_a_name_is_named_by_its_number(monkeypatch):
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    environment.name_user()
    assert "USER" not in os.environ  # the id of this process has a name
    monkeypatch.setattr(os, "getuid", lambda: 987654)
    assert main(["explain", "D505"]) == 0 and getpass.getuser() == "987654"
    assert Path.home() == Path("/")
    (finding,) = machine.user(Params.model_validate(small_params()))
    assert "export USER=987654" in finding.advice
    monkeypatch.setenv("USER", "somebody")
    environment.name_user()
    assert os.environ["USER"] == "somebody"
