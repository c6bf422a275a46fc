"""benchmarks/gpu/measure.py: results survive parts that fail, hang or break CUDA, and a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

GPU = ROOT / "benchmarks/gpu"
# parts that do what a card can do to them, in the place of those that measure
PARTS = """
import sys, time
sys.path.insert(0, "{gpu}")
sys.argv = ["measure.py", "--toy", "--out", "{out}", "--longest", "1", *{more}]
import measure
def good(kit): yield "one", {{"ms": 1.5}}
def fails(kit):
    yield "two", {{"ms": 2}}
    raise ValueError("no such kernel")
def hangs(kit):
    yield "three", {{"of_own_product": 0.5}}
    time.sleep(60)
def breaks(kit):
    kit.free = lambda: 1 / 0
    raise RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered")
    yield
measure.PARTS = dict(machine=good, fails=fails, hangs=hangs, breaks=breaks, last=good)
sys.exit(measure.main())
"""


def measure(out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    script = PARTS.format(gpu=GPU, out=out, more=list(more))
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True)


def test_the_same_command_goes_on_after_a_part_that_hangs_or_breaks_cuda(tmp_path: Path):
    assert [measure(tmp_path).returncode for _ in range(3)] == [3, 3, 0]
    lines = [json.loads(line) for line in (tmp_path / "measured.jsonl").read_text().splitlines()]
    ends = {line["part"]: line["ended"] for line in lines if "ended" in line}
    assert list(ends) == ["machine", "fails", "hangs", "breaks", "last"]
    assert ends["last"] == "done" and ends["hangs"] == "hung: no end after 1 s"
    assert ends["fails"].startswith("ValueError: no such kernel (<string>:")
    table = (tmp_path / "measured.md").read_text()
    assert "| two | ms 2 |" in table and "| three | of_own_product 50.0% |" in table
    assert (
        "- breaks: RuntimeError: Triton Error [CUDA]" in table and "nothing was measured" in table
    )


def test_a_part_for_which_no_time_was_left_is_measured_by_the_next_call(tmp_path: Path):
    assert measure(tmp_path, "--seconds", "0").returncode == 0
    assert "- last: no time was left" in (tmp_path / "measured.md").read_text()
    assert "fails: ValueError" in measure(tmp_path).stdout


def test_a_part_that_was_killed_is_told_and_not_tried_again(tmp_path: Path):
    path = tmp_path / "measured.jsonl"
    path.write_text('{"part": "hangs", "at": 0, "began": true, "toy": true}\n')
    assert [measure(tmp_path).returncode for _ in range(2)] == [3, 0]
    assert "- hangs: cut off" in (tmp_path / "measured.md").read_text()


def test_a_rehearsal_does_not_count_as_measured(tmp_path: Path):
    path = tmp_path / "measured.jsonl"
    path.write_text('{"part": "last", "at": 0, "ended": "done", "seconds": 1}\n')
    for _ in range(3):
        printed = measure(tmp_path).stdout
    assert "last: one: ms 1.5" in printed


def test_a_file_that_was_cut_off_in_a_line_is_still_a_table(tmp_path: Path):
    path = tmp_path / "measured.jsonl"
    path.write_text('{"part": "a", "at": 1, "name": "x", "found": {"ms": 3}}\n{"part": "a", "na')
    command = [sys.executable, GPU / "measure.py", "--table", path]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "| x | ms 3 |" in out


@pytest.mark.full
def test_the_whole_script_ends_in_time_with_what_it_has(tmp_path: Path):
    env = os.environ | {"OUT": os.path.relpath(tmp_path, ROOT), "LIMIT": "70", "TEST_LIMIT": "35"}
    command = [str(GPU / "test_and_measure.sh"), "--toy"]
    done = subprocess.run(command, env=env, cwd="/", **text())
    assert "cut off" in done.stdout.splitlines()[-1] and "INTERNALERROR" not in done.stdout
    for name in ("tests.jsonl", "measured.jsonl"):
        lines = (tmp_path / name).read_text().splitlines()
        assert lines and all(json.loads(line) for line in lines[:-1])
    assert "| what | found |" in (tmp_path / "measured.md").read_text()


@pytest.mark.full
def test_the_parts_run_with_toy_shapes_and_a_kill_leaves_what_was_measured(tmp_path: Path):
    command = [sys.executable, str(GPU / "measure.py"), "--toy", "--out", str(tmp_path)]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    killed = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
    while "random weights" not in killed.stdout.readline():
        assert killed.poll() is None
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    table = subprocess.run([*command, "--table", str(tmp_path / "measured.jsonl")], **text())
    assert "| random weights | seconds" in table.stdout
    done = subprocess.run([*command, "--only", "kernels", "rollouts", "updates"], env=env, **text())
    assert done.returncode == 0 and "Nothing failed" in done.stdout
    assert "| update, 2 states, checkpointing | ms" in done.stdout


def text() -> dict[str, bool]:
    return {"capture_output": True, "text": True}
