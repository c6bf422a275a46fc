"""`dopsd repro` and work/writer.lock: one DVC writer a workspace, its signals, and kills."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import forks
import psutil
import pytest
from conftest import ROOT

from dopsd.core.errors import DopsdError
from dopsd.core.processes import ENDS_WITH_INPUT
from dopsd.pipeline.dvc import writer_lock
from dopsd.pipeline.dvc.command import RWLOCK, Writing, forget_the_dead
from dopsd.pipeline.dvc.writer_lock import LOCK, WriterLock

pytestmark = pytest.mark.full

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


@pytest.fixture
def folder(tmp_path: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    LOCK.parent.mkdir()
    RWLOCK.parent.mkdir(parents=True)
    return tmp_path


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A DVC workspace without stages."""
    made = tmp_path_factory.mktemp("dvc")
    subprocess.run([sys.executable, "-m", "dvc", "init", "--no-scm", "-q"], cwd=made, check=True)
    return made


@pytest.fixture
def pipeline(folder: Path, empty: Path) -> Path:
    """A DVC workspace with two stages, which end when work/go_on appears."""
    shutil.copytree(empty, folder, dirs_exist_ok=True)
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


def repro_at_once(*words: str) -> tuple[int | None, str]:
    """Where there is nothing to wait for and no signal to send: the status, and what was said."""
    return forks.statuses([forks.start(forks.command, "repro", *words)])[0], forks.output()


def events() -> list[str]:
    return Path("work/events").read_text().split() if Path("work/events").exists() else []


def wait_for(event, process: subprocess.Popen[str] | None = None) -> None:
    until = time.monotonic() + 120
    while not event():
        assert time.monotonic() < until and (process is None or process.poll() is None)
        time.sleep(0.02)


def dvc_of(writer: subprocess.Popen[str]) -> psutil.Process:
    (dvc,) = psutil.Process(writer.pid).children()
    return dvc


def wait_for_dvc(writer: subprocess.Popen[str]) -> None:
    """Wait until DVC ignores Ctrl-C, a moment after its stage has started."""

    def is_deaf() -> bool:
        status = Path(f"/proc/{dvc_of(writer).pid}/status").read_text()
        (ignored,) = re.findall(r"SigIgn:\s*(\w+)", status)
        return bool(int(ignored, 16) >> signal.SIGINT - 1 & 1)

    wait_for(is_deaf, writer)


def lease_of_another_machine(seconds: float, host: str = "n7") -> None:
    """Write the lock as a process on another machine does that holds it for some more seconds."""
    claim = Path(f"{LOCK}|{host}|1|5")
    claim.write_text(str(claim))
    LOCK.unlink(missing_ok=True)
    LOCK.hardlink_to(claim)
    renew(seconds)


def renew(seconds: float) -> None:
    end = time.time() + seconds
    os.utime(LOCK, (end, end))


def test_a_writer_is_not_suspended_and_a_second_one_waits_for_it_and_finds_the_work_done(pipeline):
    first = repro()
    wait_for(events, first)
    first.send_signal(signal.SIGTSTP)  # its DVC would go on
    assert any(line.startswith("repro: not suspended;") for line in iter(first.stdout.readline, ""))
    second = repro()
    said = second.stdout.readline()
    assert f"process {first.pid} on {os.uname().nodename} runs DVC in this workspace; wait" in said
    Path("work/go_on").touch()
    assert (first.wait(), second.wait()) == (0, 0)
    assert events() == ["began", "began"]  # each stage once
    assert "up to date" in second.stdout.read() and not LOCK.exists()


@pytest.mark.parametrize(  # dash would stay between DVC and its stage, and die of SIGTERM
    "shell", ["/bin/sh", "/bin/bash"]
)
def test_a_sigterm_to_every_process_lets_the_stage_save_once_and_dvc_wait_for_it(
    pipeline, monkeypatch, shell
):
    if not Path(shell).is_file():
        pytest.skip(f"no {shell}")
    monkeypatch.setenv("SHELL", shell)
    writer = repro()
    wait_for(events, writer)
    wait_for_dvc(writer)
    process = psutil.Process(writer.pid)
    for each in (process, *process.children(recursive=True)):
        each.send_signal(signal.SIGTERM)
    assert writer.wait() == 255
    assert events() == ["began", "saved", "ended"]  # and the second stage did not begin
    assert "exited with 1" in writer.stdout.read() and not LOCK.exists()


def test_a_stage_whose_dvc_is_killed_before_it_has_loaded_does_not_begin(project):
    with subprocess.Popen(["true"]) as dvc:
        pass
    env = os.environ | {"DVC_STAGE": "train@sudoku-d_opsd-0", "DOPSD_DVC": str(dvc.pid)}
    env |= {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "dopsd", "train"]
    stage = subprocess.run(command, env=env, capture_output=True, text=True)
    assert stage.returncode == 143
    assert stage.stderr == "DVC was killed before this stage began; the same command continues\n"
    assert not list(Path("work").glob("train-*"))


def test_a_stop_that_one_stage_is_too_far_on_to_hear_ends_the_next(pipeline):
    """After its last forward, a stage ends well; DVC would go on with the others for hours."""
    deaf = STAGE.replace("signal.signal(number, save)", "signal.signal(number, signal.SIG_IGN)")
    Path("stage.py").write_text(
        textwrap.dedent("import sys\n" + f"exec({deaf!r} if sys.argv[1] == 'one' else {STAGE!r})\n")
    )
    process = repro()
    wait_for(lambda: events() == ["began"], process)
    wait_for_dvc(process)
    process.send_signal(signal.SIGTERM)
    Path("work/go_on").touch()
    wait_for(lambda: Path("one").exists() or process.poll() is not None)
    Path("work/go_on").unlink()
    assert process.wait(300) != 0
    assert not Path("two").exists()


@pytest.mark.parametrize(
    "cut",
    [
        b"schema: '2.0'\nstages:\n  one:\n    de",
        b"",
        b"schema:",
    ],
)
def test_after_a_kill_that_cut_off_the_lock_file_no_stage_runs_again(pipeline, cut):
    Path("work/go_on").touch()
    assert repro_at_once()[0] == 0
    whole = Path("dvc.lock").read_bytes()
    assert repro_at_once()[0] == 0  # finds nothing to do
    Path("dvc.lock").write_bytes(cut)
    status, said = repro_at_once("one")  # the records of stage two stay
    assert status == 0 and "repro: dvc.lock was cut off; moved to work/aside" in said, said
    assert Path("dvc.lock").read_bytes() == whole and events() == ["began", "began"]
    assert Path("work/aside/dvc.lock").read_bytes() == cut
    merged = b"<<<<<<< HEAD\n" + whole
    Path("dvc.lock").write_bytes(merged)
    assert repro_at_once("one")[0] != 0 and Path("dvc.lock").read_bytes() == merged


def test_after_a_kill_before_the_first_entry_of_the_run_cache_the_stage_runs_again(pipeline):
    Path("work/go_on").touch()
    assert repro_at_once("one")[0] == 0
    (entry,) = Path(".dvc/cache/runs").glob("*/*/*")
    content = entry.read_bytes()
    for path in (entry, Path("one"), Path("dvc.lock")):
        path.unlink()
    status, said = repro_at_once("one")
    assert status == 0, said
    assert entry.read_bytes() == content and events() == ["began", "began"]


@pytest.mark.parametrize("lost", [".dvc", ".git"])
def test_a_project_that_lost_its_repository_is_told_in_a_line(pipeline, lost):
    if lost == ".git":
        Path(".dvc/config").write_text("")  # no longer `no_scm`
    else:
        Path(".dvc").rename("moved")
    status, said = repro_at_once()
    assert status == 2 and "Traceback" not in said
    assert "(D206)" in said.splitlines()[-1] and f"`{lost[1:]} init`" in said.splitlines()[-1]


def test_what_is_no_file_among_the_users_rows_is_named_before_dvc_waits_for_it(folder, refusal):
    Path("dvc.yaml").touch()
    Path("data/external").mkdir(parents=True)
    Path("data/external/rows.jsonl").touch()
    Path("data/external/.#rows.jsonl").symlink_to("me@here.77")  # of an editor
    assert "data/external/.#rows.jsonl: is a link to nothing" in refusal("repro")
    Path("data/external/.#rows.jsonl").unlink()
    os.mkfifo("data/external/pipe")
    assert "dopsd: repro: data/external/pipe: is" in refusal("repro")
    assert not Path("dvc.lock").exists()


def test_what_a_killed_flow_had_started_saves_and_ends(pipeline):
    command = [sys.executable, "-m", "dopsd", "repro"]
    env = os.environ | {ENDS_WITH_INPUT: "1"}
    words = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL}
    writer = subprocess.Popen(command, env=env, **words)
    wait_for(events, writer)
    writer.stdin.close()
    wait_for(lambda: events() == ["began", "saved", "ended"])
    assert writer.wait(60)
    assert not LOCK.exists()


def test_the_exit_status_and_the_words_are_those_of_dvc(pipeline):
    words = [[sys.executable, "-m", door, "repro", "no-such-stage"] for door in ("dvc", "dopsd")]
    found = [subprocess.run(each, capture_output=True, text=True) for each in words]
    by_dvc, by_us = ((one.returncode, one.stdout, one.stderr) for one in found)
    assert by_us == by_dvc and by_us[0] == 255


def has_ended(process: psutil.Process) -> bool:
    """Whether a process runs no more; init may leave an orphan's entry for a while."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_killed_writer_takes_dvc_along_and_the_next_one_continues(pipeline):
    writer = repro()
    wait_for(events, writer)
    dvc = dvc_of(writer)
    (stage,) = dvc.children()
    writer.kill()
    wait_for(lambda: has_ended(dvc))
    Path("work/go_on").touch()
    wait_for(lambda: has_ended(stage))
    assert str(dvc.pid) in RWLOCK.read_text()
    writer.wait()
    status, said = repro_at_once()
    assert status == 0
    assert f"process {writer.pid} on {os.uname().nodename} ended without removing" in said
    assert "had been killed" not in said  # DVC's words on its own list
    assert sorted(Path("work").iterdir()) == [Path("work/events"), Path("work/go_on")]


def test_a_writer_that_was_stopped_while_its_lease_ended_ends_and_the_next_finds_its_dvc(pipeline):
    """Only SIGSTOP does this: Ctrl-Z is refused. DVC goes on, and nothing runs twice."""
    writer = repro()
    wait_for(events, writer)
    writer.send_signal(signal.SIGSTOP)
    renew(-11)
    second = repro()
    assert second.wait(120) == 255
    assert f"(PID {dvc_of(writer).pid})" in second.stdout.read()  # DVC says whom it waits for
    writer.send_signal(signal.SIGCONT)
    assert writer.wait(120) != 0 and "another writer took over" in writer.stdout.read()
    assert events() == ["began", "saved", "ended"]


@pytest.mark.parametrize(
    ("host", "holder"), [("n7", "process 1 on n7"), ("n7+4026531836+12", "Slurm job 12 on n7")]
)
def test_a_lease_of_another_machine_is_respected_until_it_ends(folder, host: str, holder: str):
    lease_of_another_machine(30, host)
    entered = threading.Event()
    said: list[str] = []

    def write() -> None:
        with WriterLock("repro", tell=said.append):
            entered.set()

    waiting = threading.Thread(target=write)
    waiting.start()
    assert not entered.wait(4)
    assert said == [
        f"repro: work/writer.lock: {holder} runs DVC in this workspace; waiting for its end"
    ]
    renew(-11)  # flufl.lock waits for ten seconds more than the lease
    assert entered.wait(60)
    waiting.join()
    assert not [*Path("work").iterdir()]


def test_of_many_that_wait_for_a_stale_lock_one_at_a_time_gets_it(folder):
    lease_of_another_machine(-11)
    code = (
        "import time\nfrom dopsd.pipeline.dvc.writer_lock import WriterLock\nfor _ in range(3):\n"
        "    with WriterLock('repro'), open('work/order', 'a') as order:\n        print('in',"
        " file=order, flush=True); time.sleep(0.05); print('out', file=order, flush=True)\n"
    )
    waiting = [
        subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL) for _ in range(4)
    ]
    assert [process.wait(120) for process in waiting] == [0] * 4
    assert Path("work/order").read_text().split() == ["in", "out"] * 12
    assert sorted(Path("work").iterdir()) == [Path("work/order")]


def test_a_writer_renews_its_lease(folder, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(writer_lock, "RENEW_EVERY", 0.02)
    with WriterLock("repro"):
        renew(-5)
        wait_for(lambda: LOCK.stat().st_mtime > time.time() + 50)


def test_a_writer_that_lost_its_workspace_is_notified(folder, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(writer_lock, "RENEW_EVERY", 0.2)
    lost = threading.Event()
    with WriterLock("repro", lost.set):
        lease_of_another_machine(30)
        assert lost.wait(60)
    assert LOCK.read_text() == f"{LOCK}|n7|1|5"


def test_a_signal_while_waiting_leaves_no_file(folder, monkeypatch: pytest.MonkeyPatch):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    lease_of_another_machine(30)
    before = sorted(Path("work").iterdir())
    monkeypatch.setattr(writer_lock.WriterLock, "_tell", interrupt)
    with pytest.raises(KeyboardInterrupt), WriterLock("repro"):
        pass
    assert sorted(Path("work").iterdir()) == before


@pytest.mark.parametrize(
    "text", ["", "[]", '{"write": {', '{"write": {"/a": {"pid": %d, "cmd": "dvc"}}}']
)
def test_dvcs_list_goes_if_it_is_cut_off_or_names_no_dvc_that_runs(folder, text):
    RWLOCK.write_text(text % os.getppid() if "%" in text else text)
    forget_the_dead()
    assert not RWLOCK.exists()


def test_the_list_of_a_dvc_that_runs_stays(folder):
    words, pipe = [sys.executable, "-c", "print(flush=True); input()", "dvc"], subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe) as dvc:
        assert dvc.stdout and dvc.stdout.readline()  # before, it may have no command line yet
        RWLOCK.write_text(f'{{"write": {{"/a": {{"pid": {dvc.pid}, "cmd": "dvc repro"}}}}}}')
        forget_the_dead()
        assert RWLOCK.exists()


def test_a_signal_before_dvc_starts_is_not_forgotten_where_a_library_catches_the_error(here):
    writing = Writing(["repro"])
    with contextlib.suppress(Exception):  # as an import in a library does
        writing._note(signal.SIGTERM, None)
    with pytest.raises(DopsdError, match="SIGTERM before DVC started") as found:
        writing._run_dvc()
    assert found.value.exit_code == 128 + signal.SIGTERM and writing.process is None
