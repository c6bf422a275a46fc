"""Chains: steps worked out by hand, splits with streams of their own, and both scoring rules."""

from __future__ import annotations

import pytest

from dopsd.core.errors import DopsdError
from dopsd.tasks.chains.config import ChainsConfig
from dopsd.tasks.chains.task import Chains, steps

SMALL = ChainsConfig(train=300, validation=40, test=40)
TASK = Chains(SMALL)
PROBLEM = TASK.ask("3 *4 -1 +2")


@pytest.mark.parametrize(
    ("chain", "modulus", "careful", "careless"),
    [
        ("3 *4 -1 +2", 5, "3*4=2,2-1=1,1+2=3", "3*4=2,2-1=1,1+2=3"),  # 12 and 7 leave the same
        ("2 *4 -4", 5, "2*4=3,3-4=4", "2*4=1,1-4=2"),
        ("0 -1 *3", 5, "0-1=4,4*3=2", "0-1=4,4*3=2"),
        ("7 *3 +8", 10, "7*3=1,1+8=9", "7*3=0,0+8=8"),
    ],
)
def test_steps_by_hand(chain: str, modulus: int, careful: str, careless: str):
    assert ",".join(steps(chain, modulus)) == careful
    assert ",".join(steps(chain, modulus, is_careful=False)) == careless


def test_splits_share_no_chain_and_no_stream():
    splits = TASK.build()
    assert [len(problems) for problems in splits.values()] == [300, 40, 40]
    assert len({p.prompt for problems in splits.values() for p in problems}) == 380
    assert all("*" in p.prompt and not TASK.fault(p) for p in splits["train"])
    for split in splits:
        fewer = Chains(SMALL.model_copy(update={split: 7})).build()
        assert fewer == splits | {split: splits[split][:7]}


def test_worked_solutions_are_right_when_careful_and_wrong_for_most_chains_when_not():
    problems = TASK.build()["train"]
    assert all(TASK.verify(p, TASK.worked_solution(p, True)).correct for p in problems)
    scores = [TASK.verify(p, TASK.worked_solution(p, False)).score for p in problems]
    assert 0.1 * len(scores) < sum(scores) < 0.5 * len(scores)


@pytest.mark.parametrize(
    ("text", "figures"),
    [
        ("<reasoning>1</reasoning><answer>3</answer>", (1.0, 1.0)),
        ("<answer> 3 </answer> 4", (1.0, 1.0)),
        ("<answer>3", (1.0, 0.0)),
        ("<answer>3<|eot_id|>", (1.0, 0.0)),
        ("<answer>33</answer>", (0.0, 0.0)),
        ("3", (0.0, 0.0)),
    ],
)
def test_both_rules(text: str, figures: tuple[float, float]):
    found = TASK.verify(PROBLEM, text).figures
    assert (found["published"], found["strict"]) == figures and len(found) == 2


@pytest.mark.parametrize("text", ["3 *5", "5 +1", "3", "3*4", "3 *4 ", "3 /4", "", "3 *٣"])
def test_what_is_no_chain_is_refused(text: str):
    damaged = PROBLEM.__class__("p", text, "3")
    assert "numbers below 5" in TASK.fault(damaged)
    if text.strip() != "3 *4":
        with pytest.raises(DopsdError, match="expected numbers below 5"):
            TASK.ask(text)


def test_a_wrong_answer_on_disk_or_in_a_file_is_named():
    assert TASK.fault(PROBLEM.__class__("p", "3 *4", "4")) == "the answer 2, found '4'"
    with pytest.raises(DopsdError, match="expected the answer 2"):
        TASK.of_generation("3 *4", 4)


@pytest.mark.parametrize(
    ("modulus", "results"), [(5, "2 and 1-3 gives 3"), (7, "5 and 1-3 gives 5")]
)
def test_the_instructions_have_examples_of_their_own_modulus(modulus: int, results: str):
    task = Chains(ChainsConfig(modulus=modulus))
    text = task.messages(task.ask("1 *2"), "instructions")[0]["content"]
    assert f"division by {modulus} (3*4 gives {results})" in text and text.endswith("\n\n1 *2")


def test_too_few_chains_name_the_key():
    with pytest.raises(DopsdError, match=r"data\.chains\.test: found only \d+ distinct"):
        Chains(ChainsConfig(operations=2, modulus=2, train=1, validation=1, test=50)).build()
