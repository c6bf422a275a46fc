"""A rank that is killed ends the run in one line; another rank saves the last whole update."""

from __future__ import annotations

from pathlib import Path

import forks
import pytest
from conftest import write_params
from slow_training import killed_after

from dopsd.core.fingerprint import sha256
from dopsd.models.adapter_files import ADAPTER

OUT = Path("runs/sudoku/d_opsd/0/train")


def digests() -> dict[str, str]:
    return {path.parent.name: sha256(path) for path in sorted(OUT.glob(f"*/{ADAPTER}"))}


@pytest.mark.parametrize(("dead", "update"), [(1, 1), (0, 3)])
def test_a_rank_that_survives_saves_the_batches_of_all(project, dead: int, update: int):
    """Within the updates of a collect, and after its first step; no periodic checkpoint is near."""
    write_params(train__updates=5, train__prompts_per_collect=3, train__checkpoint_every=5)
    assert forks.statuses(forks.start_ranks(2, forks.command, "train")) == [0, 0], forks.output()
    whole = digests()
    for path in Path("work").glob("train-*"):
        path.rename(path.with_name("whole"))
    ends = forks.statuses(forks.start_ranks(2, killed_after, update, str(dead)))
    said = forks.output(1 - dead)
    assert ends[dead] == -9 and ends[1 - dead] == 75, said
    assert f"saved update {update} in" in said and "(D514)" in said and "Traceback" not in said
    (folder,) = Path("work").glob("train-*")
    assert [path.name for path in folder.glob("step-*")] == [f"step-{update:06}"]
    assert forks.statuses(forks.start_ranks(2, forks.command, "train")) == [0, 0], forks.output()
    assert f"continuing after update {update}" in forks.output()
    assert digests() == whole
