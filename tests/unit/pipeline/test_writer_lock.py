"""`dopsd repro` and work/writer.lock: one DVC writer a workspace, its signals, and what is left of
one that was killed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest
from conftest import ROOT

from dopsd.pipeline.writer_lock import LOCK, RWLOCK, WriterLock, forget

STAGE = """
import pathlib, signal, sys, time
def save(number, _):
    for again in (signal.SIGINT, signal.SIGTERM): signal.signal(again, signal.SIG_IGN)
    with open("work/events", "a") as events: events.write("saved\\n")
    time.sleep(0.5)
    with open("work/events", "a") as events: events.write("ended\\n")
    sys.exit(128 + number)
for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, save)
with open("work/events", "a") as events: events.write("began\\n")
while pathlib.Path("work/go_on").exists() is False: time.sleep(0.02)
pathlib.Path(sys.argv[1]).write_text("made")
"""
OTHER = {
    "token": "t",
    "host": "n7",
    "job": "12",
    "pid": 1,
    "machine": "another",
    "interval": 0.05,
    "dvc": 4711,
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOPSD_BEAT_SECONDS", "0.2")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    LOCK.parent.mkdir()
    RWLOCK.parent.mkdir(parents=True)
    return tmp_path


@pytest.fixture
def pipeline(folder: Path) -> Path:
    """A DVC workspace with two stages, which end when work/go_on appears."""
    subprocess.run([sys.executable, "-m", "dvc", "init", "--no-scm", "-q", "--force"], check=True)
    Path("stage.py").write_text(textwrap.dedent(STAGE))
    stage = f"{{cmd: {sys.executable} stage.py %s, deps: [stage.py%s], outs: [%s]}}"
    Path("dvc.yaml").write_text(
        f"stages:\n  one: {stage % ('one', '', 'one')}\n  two: {stage % ('two', ', one', 'two')}\n"
    )
    return folder


def repro(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "dopsd", "repro", *words]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def events() -> list[str]:
    return Path("work/events").read_text().split() if Path("work/events").exists() else []


def wait_for(event, process: subprocess.Popen[str] | None = None) -> None:
    until = time.monotonic() + 120
    while not event():
        assert time.monotonic() < until and (process is None or process.poll() is None)
        time.sleep(0.02)


def dvc_waits() -> bool:
    """Whether DVC has begun to ignore Ctrl-C, a moment after its stage has started."""
    status = Path(f"/proc/{json.loads(LOCK.read_text())['dvc']}/status").read_text()
    (ignored,) = re.findall(r"SigIgn:\s*(\w+)", status)
    return bool(int(ignored, 16) >> signal.SIGINT - 1 & 1)


def test_a_second_writer_says_whom_it_waits_for_and_finds_the_work_done(pipeline):
    first = repro()
    wait_for(events, first)
    second = repro()
    said = second.stdout.readline()
    assert (
        said
        == f"repro: work/writer.lock: process {first.pid} on {os.uname().nodename} runs DVC in this"
        " workspace; " + "waiting for its end\n"
    )
    Path("work/go_on").touch()
    assert (first.wait(), second.wait()) == (0, 0) and events() == [
        "began",
        "began",
    ]  # each stage once
    assert "up to date" in second.stdout.read() and not LOCK.exists()


@pytest.mark.parametrize(
    "shell", ["/bin/bash", "/bin/sh"]
)  # dash would stay between DVC and its stage, and die of SIGTERM
def test_a_sigterm_to_every_process_lets_the_stage_save_once_and_dvc_wait_for_it(
    pipeline, monkeypatch, shell
):
    if not Path(shell).is_file():
        pytest.skip(f"no {shell}")
    monkeypatch.setenv("SHELL", shell)
    writer = repro()
    wait_for(events, writer)
    wait_for(dvc_waits, writer)
    for process in [
        psutil.Process(writer.pid),
        *psutil.Process(writer.pid).children(recursive=True),
    ]:
        process.send_signal(signal.SIGTERM)
    assert writer.wait() == 255
    assert events() == ["began", "saved", "ended"]  # and the second stage did not begin
    assert "exited with 1" in writer.stdout.read() and not LOCK.exists()


def test_a_stage_whose_dvc_is_killed_before_it_has_loaded_does_not_begin(project):
    with subprocess.Popen(["true"]) as dvc:
        pass
    env = os.environ | {
        "DVC_STAGE": "train@sudoku-d_opsd-0",
        "DOPSD_DVC": str(dvc.pid),
        "PYTHONPATH": str(ROOT),
    }
    stage = subprocess.run(
        [sys.executable, "-m", "dopsd", "train"],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (
        stage.returncode == 143
        and stage.stderr == "DVC was killed before this stage began; the same command continues\n"
    )
    assert not list(Path("work").glob("train-*"))


def test_a_writer_is_not_suspended_while_its_dvc_goes_on(pipeline):
    writer = repro()
    wait_for(events, writer)
    writer.send_signal(signal.SIGTSTP)
    said = iter(writer.stdout.readline, "")
    assert any(
        line == "repro: not suspended; stop with Ctrl-C, and the same command continues\n"
        for line in said
    )
    Path("work/go_on").touch()
    assert writer.wait() == 0


def test_a_stop_that_one_stage_is_too_far_on_to_hear_ends_the_next(pipeline):
    """A stage that has made its last forward publishes and ends well; DVC would go on with the
    others for hours.
    """
    deaf = STAGE.replace("signal.signal(number, save)", "signal.signal(number, signal.SIG_IGN)")
    Path("stage.py").write_text(
        textwrap.dedent("import sys\n" + f"exec({deaf!r} if sys.argv[1] == 'one' else {STAGE!r})\n")
    )
    process = repro()
    wait_for(lambda: events() == ["began"], process)
    wait_for(dvc_waits, process)
    process.send_signal(signal.SIGTERM)
    Path("work/go_on").touch()
    wait_for(lambda: Path("one").exists() or process.poll() is not None)
    Path("work/go_on").unlink()
    assert process.wait(300) != 0
    assert not Path("two").exists()


@pytest.mark.parametrize(
    "cut",
    ['{"write": {"one": ', *(pytest.param(cut, marks=pytest.mark.full) for cut in ("", "[]"))],
)
def test_a_list_of_dvc_that_a_full_disk_cut_off_does_not_stop_the_next_run(pipeline, cut):
    RWLOCK.write_text(cut)
    Path("work/go_on").touch()
    process = repro("one")
    assert process.wait(300) == 0, process.stdout.read()


@pytest.mark.parametrize(
    "cut",
    [
        b"schema: '2.0'\nstages:\n  one:\n    de",
        *(pytest.param(cut, marks=pytest.mark.full) for cut in (b"", b"schema:")),
    ],
)
def test_a_lock_file_that_a_full_disk_cut_off_is_put_back(pipeline, cut):
    Path("work/go_on").touch()
    for _ in range(2):  # the second one keeps what the first has written
        assert repro("one").wait(300) == 0
    whole = Path("dvc.lock").read_bytes()
    Path("dvc.lock").write_bytes(cut)
    process = repro("one")
    assert process.wait(300) == 0, process.stdout.read()
    assert (
        "repro: dvc.lock was cut off or damaged; restored as before the last run"
        in process.stdout.read()
    )
    assert Path("dvc.lock").read_bytes() == whole and events() == ["began"]
    assert Path("work/dvc.lock.damaged").read_bytes() == cut
    merged = b"<<<<<<< HEAD\n" + whole
    Path("dvc.lock").write_bytes(merged)
    assert repro("one").wait(300) != 0 and Path("dvc.lock").read_bytes() == merged


def test_a_damaged_entry_of_the_run_cache_is_removed_and_its_stage_runs_again(pipeline):
    Path("work/go_on").touch()
    assert repro("one").wait(300) == 0
    (entry,) = Path(".dvc/cache/runs").glob("*/*/*")
    content = entry.read_bytes()
    entry.write_bytes(
        content[: content.index(b"outs:")]
    )  # valid YAML, and DVC asks it for its outs
    for path in ("one", "dvc.lock"):
        Path(path).unlink()
    process = repro("one")
    assert process.wait(300) == 0, process.stdout.read()
    assert (
        f"repro: {entry}: damaged; moved to work/aside/run-cache, running again"
        in process.stdout.read()
    )
    assert events() == ["began", "began"] and entry.read_bytes() == content
    for path in (
        entry,
        Path("one"),
        Path("dvc.lock"),
    ):  # DVC removes what is no YAML, and fails at the empty folder
        path.unlink()
    process = repro("one")
    assert process.wait(300) == 0, process.stdout.read()
    assert entry.read_bytes() == content


def test_a_killed_guard_of_a_flow_stops_what_it_had_started(pipeline):
    words = [
        sys.executable,
        str(ROOT / "flows" / "guard.py"),
        sys.executable,
        "-m",
        "dopsd",
        "repro",
    ]
    guard = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    wait_for(events, guard)
    guard.kill()
    guard.wait()
    wait_for(lambda: events() == ["began", "saved", "ended"])
    wait_for(lambda: not LOCK.exists())


@pytest.mark.full
def test_the_exit_status_and_the_words_are_those_of_dvc(pipeline):
    found = [
        subprocess.run(
            [sys.executable, "-m", *door, "repro", "no-such-stage"], capture_output=True, text=True
        )
        for door in (("dvc",), ("dopsd",))
    ]
    by_dvc, by_us = ((one.returncode, one.stdout, one.stderr) for one in found)
    assert by_us == by_dvc and by_us[0] == 255


def test_a_killed_writer_takes_dvc_along_and_the_next_one_continues(pipeline):
    writer = repro()
    wait_for(events, writer)
    dvc = json.loads(LOCK.read_text())["dvc"]
    stage = psutil.Process(dvc).children()[0]
    writer.kill()
    wait_for(
        lambda: not psutil.pid_exists(dvc) or psutil.Process(dvc).status() == psutil.STATUS_ZOMBIE
    )
    Path("work/go_on").touch()
    stage.wait(60)
    assert str(dvc) in RWLOCK.read_text()
    after = repro()
    assert after.wait() == 0, after.stdout.read()
    assert "ended without removing the lock; taking over" in after.stdout.read()
    assert str(dvc) not in RWLOCK.read_text()


def test_a_writer_on_another_machine_is_respected_while_it_beats_and_taken_over_when_it_does_not(
    folder,
):
    LOCK.write_text(json.dumps(OTHER))
    RWLOCK.write_text(
        json.dumps(
            {
                "write": {"/a": {"pid": 4711, "cmd": "dvc"}, "/b": {"pid": 5, "cmd": "dvc"}},
                "read": {},
            }
        )
    )
    last = 0.0
    ended = threading.Event()

    def beat() -> None:
        nonlocal last
        while not ended.wait(0.02):
            os.utime(LOCK)
            last = time.monotonic()

    beats = threading.Thread(target=beat)
    beats.start()
    threading.Timer(2.0, ended.set).start()
    with WriterLock("repro"):
        assert time.monotonic() - last >= 10 * OTHER["interval"] and ended.is_set()
    assert json.loads(RWLOCK.read_text())["write"].keys() == {
        "/b"
    }  # a plain `dvc repro` beside it keeps its own


def test_of_many_that_wait_for_a_stale_lock_one_at_a_time_gets_it(folder):
    LOCK.write_text(json.dumps(OTHER))
    code = (
        "import time\nfrom dopsd.pipeline.writer_lock import WriterLock\nfor _ in range(3):\n   "
        " with WriterLock('repro'), open('work/order', 'a') as order:\n        print('in',"
        " file=order, flush=True); time.sleep(0.05); print('out', file=order, flush=True)\n"
    )
    waiting = [
        subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL) for _ in range(4)
    ]
    assert [process.wait(120) for process in waiting] == [0] * 4
    assert Path("work/order").read_text().split() == ["in", "out"] * 12
    assert sorted(Path("work").iterdir()) == [Path("work/order")]


def test_a_writer_that_lost_its_workspace_is_notified(folder):
    lost = threading.Event()
    with WriterLock("repro", lost.set):
        LOCK.write_text(json.dumps(OTHER))
        assert lost.wait(60)
    assert json.loads(LOCK.read_text()) == OTHER


def test_a_list_that_dvc_left_half_written_does_not_stop_the_next(folder):
    RWLOCK.write_text('{"write": {')
    forget(4711)
    assert not RWLOCK.exists()
