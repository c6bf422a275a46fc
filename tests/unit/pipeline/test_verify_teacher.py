"""`dopsd verify-teacher`: what the teacher is shown, its table, and a kill."""

import json
from pathlib import Path
from types import SimpleNamespace

import glossary_checks
import torch
from conftest import write_params
from hypothesis import given
from hypothesis import strategies as st

from dopsd.cli.main import main
from dopsd.core.types import Problem, Rollout, Score
from dopsd.models.text import ChatText, build_tokenizer
from dopsd.pipeline.stages import verify_teacher
from dopsd.rollout.answer_span import answer_hints, hints
from dopsd.tasks.registry import load_task
from dopsd.tasks.sudoku.config import SudokuConfig

TABLE = Path("reports/sudoku/teacher/teacher.json")
MASK, END = 1, 2


@given(st.integers(0, 30), st.floats(0, 1))
def test_hints_are_a_share_of_the_text_and_never_its_end(length, ratio):
    ids = torch.tensor([5 + i for i in range(length)] + [END] * (32 - length))
    rollout = Rollout("a", 0, torch.tensor([3]), ids, torch.arange(32))
    shown = hints(rollout, ratio, MASK, END)
    kept = shown != MASK
    assert int(kept.sum()) == int(ratio * length) and torch.equal(shown[kept], ids[kept])
    assert not bool(kept[length:].any())


def policy_of_text() -> SimpleNamespace:
    tokenizer = build_tokenizer()
    mask, end = tokenizer.mask_token_id, tokenizer.eos_token_id
    config = SimpleNamespace(eos_token_id=end, end_of_turn="", mask_token_id=mask)
    text = ChatText(tokenizer, SimpleNamespace(config=config))
    return SimpleNamespace(text=text, mask_id=mask, eos_id=end)


def test_the_right_answer_is_shown_in_the_place_of_the_own_one_and_nothing_else():
    policy = policy_of_text()
    text, mask, end = policy.text, policy.mask_id, policy.eos_id
    task = load_task("sudoku", SudokuConfig())
    problem = Problem("p", "0234341221434320", "1234341221434321")
    own = text.tokens("<reasoning>12</reasoning><answer>4444333322221111</answer>")
    ids = torch.cat([own, torch.full((40 - len(own),), end)])
    rollout = Rollout("p", 0, torch.tensor([3]), ids, torch.arange(40))
    whole = answer_hints(policy, task, problem, rollout, 1.0)
    assert text.decode(whole[whole != mask]) == problem.answer
    assert (whole != mask).nonzero()[:, 0].tolist() == list(range(5, 21))
    half = answer_hints(policy, task, problem, rollout, 0.5)
    kept = half != mask
    assert int(kept.sum()) == 8 and torch.equal(half[kept], whole[kept])
    nothing = Rollout("p", 0, torch.tensor([3]), torch.full((40,), end), torch.arange(40))
    assert bool((answer_hints(policy, task, problem, nothing, 1.0) == mask).all())


def test_a_right_answer_is_shown_only_where_the_verifier_reads_it():
    """This one takes a text that ends with its answer."""
    policy, problem = policy_of_text(), Problem("p", "1", "2")
    own = policy.text.tokens("<answer>3</answer>")
    ids = torch.cat([own, torch.full((8 - len(own),), policy.eos_id)])
    rollout = Rollout("p", 0, torch.tensor([3]), ids, torch.arange(8))

    def is_shown(ending: str, after_eos: bool) -> bool:
        task = SimpleNamespace(
            answer_text=lambda problem: problem.answer,
            verify=lambda problem, text: Score(None, 0.0, text.endswith(ending)),
        )
        shown = answer_hints(policy, task, problem, rollout, 1.0, after_eos)
        return bool((shown != policy.mask_id).any())

    assert is_shown("2</answer>", after_eos=False) and not is_shown("3</answer>", after_eos=False)
    assert not is_shown("2</answer>", after_eos=True)


def test_scores_are_kept_by_problem_and_the_table_has_a_row_a_ratio(project, monkeypatch):
    ratios = {"reveal_ratios": [0.0, 1.0], "answer_ratios": [0.0, 0.5]}
    section = {"problems": 6, "attempts": 2} | ratios
    write_params(verify_teacher=section, sampling__batch_size=4)
    assert main(["verify-teacher"]) == 0
    table = json.loads(TABLE.read_text())
    teachers = ["teacher at 0.00", "teacher at 1.00", "gold answer at 0.00", "gold answer at 0.50"]
    assert set(table) == {"pass@1", "pass@2", *teachers}
    glossary_checks.check(glossary_checks.table("Teacher"), table)
    for name in teachers[::2]:  # nothing is shown: greedy again
        assert table[name]["accuracy"] == table["pass@1"]["accuracy"]
    for row in table.values():
        assert row["interval"][0] <= row["accuracy"] <= row["interval"][1] and row["n"] == 6
    (lines,) = Path("work/teacher").iterdir()
    whole = lines.read_text()
    asked = []
    first = verify_teacher.Verification._scores
    noting = lambda self, policy, some: asked.extend(some) or first(self, policy, some)  # noqa: E731
    monkeypatch.setattr(verify_teacher.Verification, "_scores", noting)
    lines.write_text(whole[:-20])  # killed while the last line was written
    TABLE.unlink()
    assert main(["verify-teacher"]) == 0
    assert len(asked) == 1 and json.loads(TABLE.read_text()) == table
    assert (TABLE.parent / "teacher.png").stat().st_size > 5000
