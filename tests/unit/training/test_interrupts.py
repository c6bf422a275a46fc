"""Signals and closed pipes: training saves its last finished update within a forward."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import forks
import pytest
from conftest import ROOT, built_once, in_copy, write_params
from forks import BOUND
from slow_training import slow_sealing, slow_update
from toy_runs import adapter_digests
from waiting import until

from dopsd.cli.main import main
from dopsd.config.loading import load_params
from dopsd.core.interrupts import Interrupts
from dopsd.models.llm_policy import LlmPolicy
from dopsd.training import checkpoint
from dopsd.training.run_identity import identify


def saved() -> list[int]:
    folder = identify(load_params().run("sudoku", "d_opsd", 0)).folder
    return [c.update for c in checkpoint.checkpoints(folder)]


def has_logged() -> bool:
    return any(path.stat().st_size for path in Path("work").glob("train-*/log.jsonl"))


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def start(words: list[str], **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, *words], env=environment(), text=True, **options)


@pytest.mark.full
def test_training_continues_without_a_reader_of_its_output(project):
    read, write = os.pipe()
    process = start(["-m", "dopsd", "train"], stdout=write, stderr=write)
    os.close(read)
    os.close(write)
    assert process.wait(BOUND) == 0
    assert saved() == [2, 4] and len(adapter_digests()) == 2


@pytest.fixture(scope="module")
def whole(prepared, tmp_path_factory) -> dict[str, str]:
    """Digests of a run of five updates that nobody stopped."""

    def build(folder):
        with in_copy(prepared, folder):
            write_params(train__updates=5)
            assert main(["train"]) == 0

    with contextlib.chdir(built_once(tmp_path_factory, "whole-interrupts", build) / "project"):
        return adapter_digests()


@pytest.mark.parametrize("at", [3, pytest.param(21, marks=pytest.mark.full), 23, 40])
def test_a_signal_ends_a_collect_or_an_update_before_its_next_forward(
    whole, project, monkeypatch, capsys, at
):
    """A collect has 20 forwards, an update 2: collect, update, update, collect."""
    write_params(train__updates=5)
    hidden, forwards = LlmPolicy.hidden, []

    def counted(self, *inputs):
        value = hidden(self, *inputs)
        forwards.append(1)
        if len(forwards) == at:
            for _ in range(3):  # clusters send it to every process, from several sides
                os.kill(os.getpid(), signal.SIGTERM)
        return value

    with monkeypatch.context() as patch:
        patch.setattr(LlmPolicy, "hidden", counted)
        assert main(["train"]) == 143
    assert len(forwards) == at
    last = saved()[-1:]
    text = (
        f"saved at update {last[0]} in" if last else "no update was finished, so nothing is saved"
    )
    assert f"train: interrupted by SIGTERM; {text}" in capsys.readouterr().err
    assert main(["train"]) == 0
    assert adapter_digests() == whole


@pytest.mark.full
def test_two_ranks_stop_together_though_only_one_hears_of_it(project):
    write_params(train__updates=5, launch__processes=2)
    assert forks.statuses(forks.start_ranks(2, forks.command, "train")) == [0, 0]
    whole = adapter_digests()
    for path in Path("work").glob("train-*"):
        path.rename(path.with_name("whole"))
    ranks = forks.start_ranks(2, slow_update, 0.5)
    until(lambda: Path("slow-0").exists() and Path("slow-1").exists())
    ranks[1].terminate()
    assert forks.statuses(ranks) == [143, 143]
    assert "saved at update 2" in forks.output(0) + forks.output(1)
    assert saved() == [2]
    assert forks.statuses(forks.start_ranks(2, forks.command, "train")) == [0, 0]
    assert adapter_digests() == whole


@pytest.mark.full
def test_no_rank_leaves_before_the_checkpoint_has_its_name(project):
    """torchrun kills the others half a minute after the first has ended."""
    write_params(train__updates=1, launch__processes=2)
    assert forks.statuses(forks.start_ranks(2, slow_sealing, 3.0)) == [0, 0]
    assert [Path(f"left-{rank}").read_text() for rank in (0, 1)] == ["sealed", "sealed"]


@pytest.mark.full
@forks.with_a_launcher
def test_signals_to_the_launcher_of_two_ranks_let_both_save(project):
    write_params(train__updates=400, train__checkpoint_every=400, launch__processes=2)
    process = start(["-m", "dopsd", "train"], stderr=subprocess.PIPE)
    until(lambda: has_logged() or process.poll() is not None)
    for _ in range(3):
        process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=BOUND)
    assert process.returncode == 143, told[-3000:]
    assert len(saved()) == 1 and f"saved at update {saved()[0]}" in told


def test_only_a_second_ctrl_c_at_a_terminal_some_seconds_later_ends_without_saving(monkeypatch):
    from dopsd.core import interrupts

    clock = iter([0.0, 1.0, 2.5, 3.0])
    monkeypatch.setattr(interrupts.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(interrupts, "is_at_terminal", lambda: True)
    with Interrupts() as caught:
        caught._note(signal.SIGTERM, None)
        caught._note(signal.SIGINT, None)  # a second later: the same stop, from another side
        caught._note(signal.SIGTERM, None)
        with pytest.raises(KeyboardInterrupt):
            caught._note(signal.SIGINT, None)
        monkeypatch.setattr(interrupts, "is_at_terminal", lambda: False)
        clock = iter([9.0])
        caught._note(signal.SIGINT, None)


def test_a_terminal_is_one_that_the_process_is_in_the_foreground_of():
    code = "from dopsd.core.interrupts import is_at_terminal\nprint(is_at_terminal())"
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE}
    assert start(["-c", code], **streams).communicate()[0].startswith("False")
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [sys.executable, "-c", code], environment())
    shown = b""
    while b"\n" not in shown:
        shown += os.read(terminal, 100)
    os.waitpid(pid, 0)
    assert shown.startswith(b"True")


def test_a_checkpoint_is_never_missing_while_another_one_takes_its_place(tmp_path):
    final, newer = tmp_path / "step-000003", tmp_path / "step-000003.tmp"
    for folder, text in ((final, "older"), (newer, "newer")):
        folder.mkdir()
        (folder / "state.json").write_text(text)
    final.rename(final.with_suffix(checkpoint.REPLACED))  # a kill between the two renames
    checkpoint.finish_replacements(tmp_path)
    assert (final / "state.json").read_text() == "older"
    assert [p.name for p in tmp_path.iterdir()] == [final.name]
    newer.mkdir()
    (newer / "state.json").write_text("newer")
    checkpoint.seal(newer, final)
    assert (final / "state.json").read_text() == "newer"
    assert [p.name for p in tmp_path.iterdir()] == [final.name]


@pytest.mark.full
def test_training_saves_and_ends_when_dvc_is_killed(project):
    """What DVC started would otherwise train on, unseen, with the folder locked."""
    write_params(train__updates=400, train__checkpoint_every=400)
    train = [sys.executable, "-m", "dopsd", "train"]
    code = f"import subprocess, sys; sys.exit(subprocess.run({train}).returncode)"
    words, env = [sys.executable, "-c", code], environment() | {"DVC_STAGE": "train"}
    parent = subprocess.Popen(words, env=env, stderr=subprocess.DEVNULL)
    until(lambda: has_logged() or parent.poll() is not None)
    parent.kill()
    assert parent.wait() == -signal.SIGKILL
    until(saved)
