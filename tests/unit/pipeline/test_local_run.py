"""`dopsd run --local`: what its view reads, and the end of its command when the view fails."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from conftest import write_params

from dopsd.config.loading import load_params
from dopsd.pipeline.run import local as local_run
from dopsd.pipeline.run.local import Command, LocalRun
from dopsd.pipeline.run.view import Display


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_look_reads_what_the_command_has_written_since_the_last_one(folder):
    command = Command("repro")
    line = "Stage 'prüfen':\n".encode()
    command.path.write_bytes(b"one\ntwo\n" + line[:9])  # in the middle of a letter
    assert command.new_lines() == ["one", "two"]
    with command.path.open("r+b") as log:
        log.write(b"\n" * 8)  # a reader of the whole file would return its lines again
        log.seek(0, os.SEEK_END)
        log.write(line[9:] + b"three")
    assert command.new_lines() == ["Stage 'prüfen':"] and command.new_lines() == []
    assert command.lines == [""] * 8 + ["Stage 'prüfen':"]


def test_a_stage_that_ran_stays_done_when_a_later_part_finds_it_unchanged(folder):
    write_params()
    run, command = LocalRun(load_params()), Command("repro")
    said = "Running stage 'prepare@sudoku':\n"
    for name in ("pretrain", "prepare"):
        said += f"Stage '{name}@sudoku' didn't change, skipping\n"
    command.path.write_text(said)
    run._read(command)
    states = {name: stage.state for name, stage in run.stages.items()}
    assert states["prepare sudoku"] == "done" and states["pretrain sudoku"] == "up to date"


def test_the_command_ends_with_a_view_that_fails(folder, monkeypatch):
    class Endless(Command):
        def __init__(self, name: str) -> None:
            super().__init__(name)
            self.words = [sys.executable, "-c", "import time; time.sleep(600)"]

    def broken(*_: object, **__: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(local_run, "Command", Endless)
    monkeypatch.setattr(Display, "show", broken)
    write_params()
    run = LocalRun(load_params())
    with pytest.raises(BrokenPipeError):
        run.run()
    assert run.process is not None
    try:
        assert run.process.poll() is not None
    finally:
        run.process.kill()
        run.process.wait()
