"""A rank that is killed ends the run in one line; the same command continues to the same bytes."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import forks
import pytest
from conftest import write_params
from slow_training import killed_after
from toy_runs import adapter_digests

from dopsd.distributed.config import LaunchConfig
from dopsd.distributed.launch import launch

pytestmark = pytest.mark.full


@pytest.mark.parametrize(("dead", "update"), [(1, 1), (0, 3)])
def test_the_others_end_soon_and_a_rerun_continues_from_the_last_checkpoint(project, dead, update):
    """Before the first checkpoint, and within the updates of a collect after it."""
    write_params(train__updates=5, train__prompts_per_collect=3, train__checkpoint_every=2)
    assert forks.statuses(forks.start_ranks(2, forks.command, "train")) == [0, 0], forks.output()
    whole = adapter_digests()
    for path in Path("work").glob("train-*"):
        path.rename(path.with_name("whole"))
    began = time.monotonic()
    ends = forks.statuses(forks.start_ranks(2, killed_after, update, str(dead)))
    assert time.monotonic() - began < forks.BOUND / 3
    said = forks.output(1 - dead)
    assert ends[dead] == -9 and ends[1 - dead] == 75, said
    (folder,) = Path("work").glob("train-*")
    (line,) = [line for line in said.splitlines() if "(D514)" in line]
    assert f"continues from the last checkpoint in {folder}" in line and "Traceback" not in said
    assert [path.name for path in folder.glob("step-*")] == ["step-000002"] * (update > 2)
    assert forks.statuses(forks.start_ranks(2, forks.command, "train")) == [0, 0], forks.output()
    assert ("continuing after update 2" in forks.output()) == (update > 2)
    assert adapter_digests() == whole


@forks.with_a_launcher
def test_the_launcher_names_the_process_that_was_killed(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert forks.statuses([forks.start(launch_one_that_is_killed)]) == [137], forks.output()
    assert "process 1 of the run was killed by SIGKILL" in forks.output()


def launch_one_that_is_killed() -> None:
    """Two processes: the second kills itself."""
    script = Path("process").absolute()
    script.write_text("#!/bin/sh\nif [ $RANK = 1 ]; then kill -9 $$; fi\nexec sleep 60\n")
    script.chmod(0o755)
    sys.executable = str(script)
    sys.exit(launch(LaunchConfig(processes=2), ["train"]))
