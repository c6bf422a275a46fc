"""`dopsd verify-teacher`: what the teacher is shown, its table and figure, and that a kill loses a
wave at most.
"""

from __future__ import annotations

import json
from pathlib import Path

import glossary_checks
import torch
from conftest import write_params
from hypothesis import given
from hypothesis import strategies as st

from dopsd.cli.main import main
from dopsd.core.types import Rollout
from dopsd.pipeline.stages import verify_teacher

TABLE = Path("reports/sudoku/teacher/teacher.json")
MASK, END = 1, 2


@given(st.integers(0, 30), st.floats(0, 1))
def test_hints_are_a_share_of_the_text_and_never_its_end(length, ratio):
    ids = torch.tensor([5 + i for i in range(length)] + [END] * (32 - length))
    rollout = Rollout("a", 0, torch.tensor([3]), ids, torch.arange(32))
    shown = verify_teacher.hints(rollout, ratio, MASK, END)
    kept = shown != MASK
    assert int(kept.sum()) == int(ratio * length) and torch.equal(shown[kept], ids[kept])
    assert not bool(kept[length:].any())


def test_scores_are_kept_by_problem_and_the_table_has_a_row_a_ratio(project, monkeypatch):
    write_params(
        verify_teacher={"problems": 6, "attempts": 2, "reveal_ratios": [0.0, 1.0]},
        sampling__batch_size=4,
    )
    assert main(["verify-teacher"]) == 0
    table = json.loads(TABLE.read_text())
    assert set(table) == {"pass@1", "pass@2", "teacher at 0.00", "teacher at 1.00"}
    glossary_checks.check(glossary_checks.table("Teacher"), table)
    assert (
        table["teacher at 0.00"]["accuracy"] == table["pass@1"]["accuracy"]
    )  # nothing is: greedy again
    assert all(
        row["interval"][0] <= row["accuracy"] <= row["interval"][1] and row["n"] == 6
        for row in table.values()
    )
    (lines,) = Path("work/teacher").iterdir()
    whole = lines.read_text()
    asked = []
    first = verify_teacher.Verification._scores
    monkeypatch.setattr(
        verify_teacher.Verification,
        "_scores",
        lambda self, policy, some: asked.extend(some) or first(self, policy, some),
    )
    lines.write_text(whole[:-20])  # killed while the last line was written
    TABLE.unlink()
    assert main(["verify-teacher"]) == 0
    assert len(asked) == 1 and json.loads(TABLE.read_text()) == table
    assert (TABLE.parent / "teacher.png").stat().st_size > 5000
