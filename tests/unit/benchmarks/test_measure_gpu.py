"""benchmarks/gpu/measure.py: results survive parts that fail, hang or break CUDA, and a kill."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import forks
import pytest
from conftest import ROOT

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("here")]

GPU = ROOT / "benchmarks/gpu"


def with_parts_that_fail(out: Path, *more: str) -> None:
    """Run measure.py in this process, with parts that do what a card can do to them."""
    sys.path.insert(0, str(GPU))
    sys.argv = ["measure.py", "--toy", "--out", str(out), "--longest", "600", *more]
    import measure

    guards = []

    class Guard(measure.Guard):
        def __init__(self, *given) -> None:
            super().__init__(*given)
            guards.append(self)

    def good(kit):
        yield "one", {"ms": 1.5}

    def fails(kit):
        yield "two", {"ms": 2}
        raise ValueError("no such kernel")

    def hangs(kit):
        yield "three", {"of_own_product": 0.5}
        guards[0].until = 0.0  # its time is over, and that of no other part, on any machine
        time.sleep(600)

    def breaks(kit):
        kit.free = lambda: 1 / 0
        raise RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered")
        yield

    parts = {"machine": good, "fails": fails, "hangs": hangs, "breaks": breaks, "last": good}
    measure.PARTS, measure.Guard = parts, Guard
    sys.exit(measure.main())


def measure(out: Path, *more: str) -> int | None:
    return forks.statuses([forks.start(with_parts_that_fail, out, *more)])[0]


def test_the_same_command_goes_on_after_a_part_that_hangs_or_breaks_cuda(tmp_path: Path):
    assert [measure(tmp_path) for _ in range(3)] == [3, 3, 0]
    lines = [json.loads(line) for line in (tmp_path / "measured.jsonl").read_text().splitlines()]
    ends = {line["part"]: line["ended"] for line in lines if "ended" in line}
    assert list(ends) == ["machine", "fails", "hangs", "breaks", "last"]
    assert ends["last"] == "done" and ends["hangs"] == "hung: no end after 600 s"
    assert ends["fails"].startswith("ValueError: no such kernel (test_measure_gpu.py:")
    table = (tmp_path / "measured.md").read_text()
    assert "| two | ms 2 |" in table and "| three | of_own_product 50.0% |" in table
    assert "- breaks: RuntimeError: Triton Error [CUDA]" in table
    assert "nothing was measured" in table


def test_a_part_for_which_no_time_was_left_is_measured_by_the_next_call(tmp_path: Path):
    assert measure(tmp_path, "--seconds", "0") == 0
    assert "- last: no time was left" in (tmp_path / "measured.md").read_text()
    measure(tmp_path)
    assert "fails: ValueError" in forks.output()


def test_a_part_that_was_killed_is_told_and_not_tried_again(tmp_path: Path):
    path = tmp_path / "measured.jsonl"
    path.write_text('{"part": "hangs", "at": 0, "began": true, "toy": true}\n')
    assert [measure(tmp_path) for _ in range(2)] == [3, 0]
    assert "- hangs: cut off" in (tmp_path / "measured.md").read_text()


def test_a_rehearsal_does_not_count_as_measured(tmp_path: Path):
    path = tmp_path / "measured.jsonl"
    path.write_text('{"part": "last", "at": 0, "ended": "done", "seconds": 1}\n')
    for _ in range(3):
        measure(tmp_path)
    assert "last: one: ms 1.5" in forks.output()


def test_a_file_that_was_cut_off_in_a_line_is_still_a_table(tmp_path: Path):
    path = tmp_path / "measured.jsonl"
    path.write_text('{"part": "a", "at": 1, "name": "x", "found": {"ms": 3}}\n{"part": "a", "na')
    measure(tmp_path, "--table", str(path))
    assert "| x | ms 3 |" in forks.output()


@pytest.mark.nightly
def test_the_whole_script_ends_in_time_with_what_it_has(tmp_path: Path):
    env = os.environ | {"OUT": os.path.relpath(tmp_path, ROOT), "LIMIT": "70", "TEST_LIMIT": "35"}
    command = [str(GPU / "test_and_measure.sh"), "--toy"]
    done = subprocess.run(command, env=env, cwd="/", **text())
    assert "cut off" in done.stdout.splitlines()[-1] and "INTERNALERROR" not in done.stdout
    for name in ("tests.jsonl", "measured.jsonl"):
        lines = (tmp_path / name).read_text().splitlines()
        assert lines and all(json.loads(line) for line in lines[:-1])
    assert "| what | found |" in (tmp_path / "measured.md").read_text()


@pytest.mark.nightly
def test_the_parts_run_with_toy_shapes_and_a_kill_leaves_what_was_measured(tmp_path: Path):
    command = [sys.executable, str(GPU / "measure.py"), "--toy", "--out", str(tmp_path)]
    killed = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    while "random weights" not in killed.stdout.readline():
        assert killed.poll() is None
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    table = subprocess.run([*command, "--table", str(tmp_path / "measured.jsonl")], **text())
    assert "| random weights | seconds" in table.stdout
    done = subprocess.run([*command, "--only", "kernels", "rollouts", "updates"], **text())
    assert done.returncode == 0 and "Nothing failed" in done.stdout
    assert "| update, 2 states, checkpointing | ms" in done.stdout


def text() -> dict[str, bool]:
    return {"capture_output": True, "text": True}
