"""Solutions that methods learn to write get full marks by their task's own scorer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from texts import PUBLISHED, needs_golden

from dopsd.algorithms.common.solutions import Solutions, solution
from dopsd.core.types import Problem
from dopsd.tasks.common.config import Source
from dopsd.tasks.common.sources import Row, read_rows
from dopsd.tasks.common.task import Task
from dopsd.tasks.registry import TASKS, load_task

GENERATED: dict[str, dict[str, Any]] = {
    "chains": {"train": 64, "validation": 4, "test": 4},
    "countdown": {"generate": 64, "validation": 4, "generate_test": 4, "test": None},
    "sudoku": {"train": 64, "validation": 4, "test": 4},
}
MATH = [
    {"problem": "a", "solution": r"It is $1+1=\boxed{2}$."},
    {"problem": "b", "solution": r"So it is $\boxed 5$, not $\frac{1}{2}$."},
    {"problem": "c", "solution": r"Hence \[\boxed 5\]"},
    {"problem": "d", "solution": r"That is \fbox{7}."},
    {"problem": "e", "solution": "Add them.", "answer": r"\frac{3}{4}"},
    {"problem": "g", "solution": r"<answer>1</answer>, no: \boxed{2}"},
    {"problem": "f", "solution": r"Not \boxed{1}, but \boxed{\text{(B)}}."},
]


def made(name: str, **settings: Any) -> Any:
    return load_task(name, TASKS.config_class(name).model_validate(settings))


def learnt(task: Task, problems: list[Problem]) -> list[str]:
    """The texts that sft and d3llm learn."""
    texts: list[str] = []

    def tokens(text: str) -> torch.Tensor:
        texts.append(text)
        return torch.zeros(1)

    policy: Any = SimpleNamespace(text=SimpleNamespace(tokens=tokens), eos_id=0)
    Solutions(task, "sft", 1).of(policy, problems)
    return texts


def assert_full_marks(task: Task, problems: list[Problem]) -> None:
    for problem, text in zip(problems, learnt(task, problems), strict=True):
        marks = task.verify(problem, text).figures
        assert marks["published"] == marks["strict"] == 1.0, (text, marks)


@pytest.mark.parametrize("name", GENERATED)
def test_solutions_of_made_problems_get_full_marks(name: str):
    task = made(name, **GENERATED[name])
    assert_full_marks(task, task.build()["train"])


def test_solutions_of_math_get_full_marks_however_they_box():
    task = made("math500")
    assert_full_marks(task, [task.problem_of(Row(row, "a", 1)) for row in MATH])


def test_a_solution_of_gsm8k_is_learnt_in_the_layout_of_the_prompt():
    answer = "She has 3*4 = <<3*4=12>>12.\nThen 12*100 = $<<12*100=1200>>1,200.\n#### 1,200"
    task = made("gsm8k")
    problem = task.problem_of(Row({"question": "How many?", "answer": answer}, "a", 1))
    assert learnt(task, [problem]) == [
        "<reasoning>\nShe has 3*4 = 12.\nThen 12*100 = $1,200.\n</reasoning>\n"
        "<answer>\n\\boxed{1200}\n</answer>\n"
    ]
    assert solution(task, problem, "ar_opsd") == answer  # its teacher is shown the data's own


@pytest.mark.parametrize(
    "steps", [r"\boxed{7} and \boxed{5}", "<answer>9</answer>", "", "<<3<4=1>>5"]
)
def test_odd_steps_of_gsm8k_get_full_marks(steps: str):
    task = made("gsm8k")
    row = Row({"question": "How many?", "answer": f"{steps}\n####-5.50"}, "a", 1)
    assert_full_marks(task, [task.problem_of(row)])


@needs_golden
def test_all_solutions_of_gsm8k_get_full_marks_and_the_highest_reward():
    task = made("gsm8k")
    problems = [
        task.problem_of(row)
        for split in ("train", "test")
        for row in read_rows(Source(path=str(PUBLISHED / f"gsm8k/{split}.jsonl")), split)
    ]
    assert len(problems) == 7473 + 1319
    assert_full_marks(task, problems)
    texts = learnt(task, problems)
    assert {task.reward(*pair) for pair in zip(problems, texts, strict=True)} <= {3.5, 4.0}
    assert not any("<<" in text or "####" in text for text in texts)
