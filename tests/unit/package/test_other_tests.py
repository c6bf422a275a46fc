"""The `python` of warm tests is like a new one, and tests of tests/cuda run on a CPU, too."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from warm_python import warm_bin

STAND_IN = """
import os, sys, time
print(sys.argv[1:], os.getcwd(), os.environ["WARM"], sys.stdin.read())
print("to stderr", file=sys.stderr)
if sys.argv[1] == "wait":
    print("waits", flush=True)
    time.sleep(60)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "dopsd").mkdir()
    (tmp_path / "dopsd/__init__.py").touch()
    (tmp_path / "dopsd/__main__.py").write_text(STAND_IN)
    path = f"{warm_bin()}:{os.environ['PATH']}"
    return os.environ | {"PATH": path, "PYTHONPATH": str(tmp_path), "WARM": "yes"}


@pytest.mark.full
@pytest.mark.parametrize("words", [("dopsd",), ("python", "-m", "dopsd")])
def test_a_command_ends_as_with_a_new_python(words, environment, tmp_path):
    (tmp_path / "here").mkdir()

    def run(*command: str) -> tuple[int, str, str]:
        options = {"cwd": tmp_path / "here", "env": environment, "text": True}
        ended = subprocess.run([*command, "3", "a b"], input="é\n", capture_output=True, **options)
        return ended.returncode, ended.stdout, ended.stderr

    assert run(*words) == run(sys.executable, "-m", "dopsd")
    assert run(*words)[0] == 3


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_reaches_the_command(number, environment, tmp_path):
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    words = ["python", "-m", "dopsd", "wait"]
    command = subprocess.Popen(words, cwd=tmp_path, env=environment, text=True, **streams)
    assert "waits" in [command.stdout.readline().strip() for _ in range(2)]
    command.send_signal(number)
    assert command.wait(300) == -number
    command.stdout.close()


@pytest.mark.nightly
def test_they_pass_and_write_down_what_they_measure(tmp_path: Path):
    """Without the killed run, which tests/e2e and tests/chaos have on a CPU."""
    results = tmp_path / "results.jsonl"
    out = subprocess.run(
        [sys.executable, "-m", "pytest", "-m", "cuda", "tests/cuda", "-k", "not killed_training"],
        cwd=ROOT,
        env=os.environ | {"CUDA_TESTS_DEVICE": "cpu", "CUDA_TESTS_RESULTS": str(results)},
        capture_output=True,
        text=True,
    )
    assert out.returncode == 0, out.stdout[-3000:]
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    assert {line["test"].split(".py")[0] for line in lines} == {
        path.stem for path in ROOT.glob("tests/cuda/test_*.py")
    } - {"test_killed_training"}
