"""How the first node starts the others, waits for them and ends them."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from dopsd.distributed import nodes
from dopsd.distributed.nodes import BACKENDS, MEETING, NODE, Nodes

# a program of that name which runs the command here: what a host or a node of a job would do
PROGRAMS = {
    "ssh": '#!/bin/sh\nshift 3\nexec sh -c "$1"\n',  # -o BatchMode=yes HOST COMMAND
    "srun": '#!/bin/sh\nwhile [ "${1#--}" != "$1" ]; do shift; done\nSLURM_PROCID=0 exec "$@"\n',
}
SHOW = "import json, os, sys; json.dump([sys.argv[1:], dict(os.environ)], open('seen', 'w'))"


@pytest.fixture(params=BACKENDS)
def two(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Nodes:
    """Two nodes of a backend whose program is pretended."""
    for name, text in PROGRAMS.items():
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    return Nodes(2, 0, "first:1", request.param, ("a", "b"))


def test_secrets_reach_another_node_and_no_command_line(two, tmp_path, monkeypatch):
    (tmp_path / "stub" / "dopsd").mkdir(parents=True)
    (tmp_path / "stub" / "dopsd" / "__main__.py").write_text(SHOW)
    secret = "hf_secret 'of two\nlines'"
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "stub"))
    monkeypatch.setenv("HF_TOKEN", secret)
    monkeypatch.chdir(tmp_path)
    (process,) = two.start_others(["train", "--task", "a b"])
    assert process.wait(60) == 0
    words, environment = json.loads(Path("seen").read_text())
    assert words == ["train", "--task", "a b"]
    values = {"HF_TOKEN": secret, NODE: "1", MEETING: "first:1"}
    assert {name: environment[name] for name in values} == values
    assert "hf_secret" not in str(process.args)


def test_another_node_looks_for_no_dvc_of_the_first(two, project, monkeypatch):
    """The process id of that DVC means nothing there; it is above the kernel's highest one."""
    monkeypatch.setenv("DVC_STAGE", "train@x")
    monkeypatch.setenv("DOPSD_DVC", str(2**22 + 1))
    (process,) = two.start_others(["train", "--method", "unknown"])
    assert process.wait(60) == 2  # a mistake that is found after the beginning


def other(script: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["bash", "-c", script], stdin=subprocess.PIPE)


def test_all_nodes_are_told_to_end_before_the_first_is_awaited(here):
    others = [other("until [ -e told ]; do sleep 0.1; done"), other("cat; touch told")]
    assert nodes.end_others(others, 75, saving=10) == 75
    assert [process.returncode for process in others] == [0, 0]


def test_a_node_that_hangs_is_killed_and_fails_the_command(monkeypatch):
    monkeypatch.setattr(nodes, "LEAVING", 0.1)
    others = [other("exec sleep 600"), other("exit 0")]
    assert nodes.end_others(others, 0, saving=1) == 128 + signal.SIGKILL
