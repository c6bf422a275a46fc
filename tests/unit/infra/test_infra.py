"""infra/ and .github: what cannot be run here is checked as files."""

import os
import re
import runpy
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from composed import COMPOSE, interpolated
from conftest import ROOT
from waiting import until

BIN = Path(sys.executable).parent
NAMED = {"POSTGRES_PASSWORD": "p", "STORE_USER": "u", "STORE_PASSWORD": "w"}
NAMED |= {"DOPSD_REPOSITORY": "r"}


def run(program: str, *words: str | Path) -> str:
    found = subprocess.run([BIN / program, *words], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


def services() -> dict:
    return interpolated(yaml.safe_load((COMPOSE / "compose.yaml").read_text()), NAMED)["services"]


def test_the_image_holds_all_files_that_init_copies():
    dockerfile = (COMPOSE / "Dockerfile").read_text()
    copied = {
        name.removeprefix("./")
        for line in re.findall("^COPY (?!--)(.+)$", dockerfile, re.MULTILINE)
        for name in line.split()[:-1]
    }
    sent = set(re.findall("^!(.+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE))
    template = ROOT / "dopsd/pipeline/template"
    linked = [path.resolve() for path in template.rglob("*") if path.is_symlink()]
    assert linked
    for path in linked:
        above = {str(p) for p in (path.relative_to(ROOT), *path.relative_to(ROOT).parents)}
        assert above & copied, f"{path}: not copied by the Dockerfile"
    for name in copied:
        above = {str(p) for p in (Path(name), *Path(name).parents)}
        assert above & sent, f"{name}: not sent to the builder (.dockerignore)"


def test_a_slow_installation_says_how_far_it_is(tmp_path, monkeypatch, capfd):
    said = "Resolved 3 packages\nDownloading torch (9MiB)\nDownloading six\n Downloaded six\nwhy"
    program = f"import os, time\nos.write(2, {said.encode()})\ntime.sleep(1)\nos._exit(3)"
    (tmp_path / "slow.py").write_text(program)
    run = runpy.run_path(str(ROOT / ".ci/install"))["run"]
    monkeypatch.setitem(run.__globals__, "EVERY", 0.5)
    assert not run("slow", env=os.environ | {"PYTHONPATH": str(tmp_path)})
    out, err = capfd.readouterr()
    line = "  0 min: slow is working. Resolved 3 packages. Still downloading torch (9MiB)\n"
    assert line in out and err == "why"


def test_the_compose_file_is_one():
    run("check-jsonschema", "--builtin-schema", "vendor.compose-spec", COMPOSE / "compose.yaml")


def test_hadolint_finds_nothing_in_the_dockerfile():
    run("hadolint", COMPOSE / "Dockerfile")


def test_the_worker_ends_with_its_container_though_a_shell_started_it(tmp_path: Path):
    """A shell's background commands ignore SIGINT, which the worker sends itself at SIGTERM."""
    worker = "import os, signal, sys, time\nif sys.argv[1] == 'worker':\n"
    worker += "    signal.signal(15, lambda *_: os.kill(os.getpid(), 2))\n"
    worker += "    open('ready', 'w').close()\n    time.sleep(600)\n"
    commands = dict.fromkeys(("dopsd-workspace", "python"), "#!/bin/sh\n")
    for name, text in (commands | {"prefect": f"#!{sys.executable}\n{worker}"}).items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    env["DOPSD_WORKSPACE"] = str(tmp_path / "workspace")
    container = subprocess.Popen(["sh", COMPOSE / "worker.sh"], env=env, start_new_session=True)
    until((tmp_path / "workspace/ready").exists)
    container.terminate()
    try:
        assert container.wait(60) == 143
    finally:
        with suppress(ProcessLookupError):
            os.killpg(container.pid, signal.SIGKILL)


def test_only_the_uis_are_published_and_only_on_loopback():
    ports = {name: service.get("ports") for name, service in services().items()}
    assert ports.pop("prefect") == ["127.0.0.1:4200:4200"]
    assert ports.pop("mlflow") == ["127.0.0.1:5000:5000"] and {*ports.values()} == {None}
    composed = yaml.safe_load((COMPOSE / "compose.yaml").read_text())
    assert composed["networks"]["inside"] == {"internal": True}


def test_no_password_has_a_default_and_every_one_is_asked_for():
    example = dict(
        line.split("=")
        for line in (COMPOSE / ".env.example").read_text().splitlines()
        if re.match(r"\w+=", line)
    )
    assert {name for name, value in example.items() if value == ""} == set(NAMED)
    text = (COMPOSE / "compose.yaml").read_text()
    for name in NAMED:
        assert set(re.findall(rf"\$\{{{name}(..)", text)) == {":?"}
    with pytest.raises(AssertionError, match="set STORE_PASSWORD in"):
        interpolated(yaml.safe_load(text), NAMED | {"STORE_PASSWORD": ""})


WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def test_workflows_follow_the_schema():
    run("check-jsonschema", "--builtin-schema", "vendor.github-workflows", *WORKFLOWS)
    assert len(WORKFLOWS) == 3


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_pin_actions_end_in_time_and_may_only_read(path: Path):
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 90 and "permissions" not in job
        uses = [step["uses"] for step in job["steps"] if "uses" in step]
        assert uses and all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", name) for name in uses)
