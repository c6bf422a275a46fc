"""Texts to verify: garbage that looks like generations, and published ones with scores."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from dopsd.core.types import Score
from dopsd.tasks.common.task import Task

PUBLISHED = Path(os.environ.get("DOPSD_SHARED", Path(__file__).parents[2] / "shared")) / "data"
needs_golden = pytest.mark.skipif(
    not PUBLISHED.is_dir(), reason="the published generations are not part of the repository"
)

FRAGMENTS = [
    *("\\boxed{", "\\boxed", "\\boxed{}", "{", "}", "<answer>", "</answer>", "<reasoning>"),
    *("</reasoning>", "```", "<|eot_id|>", "<|endoftext|>", "49 + 55 - 53", "1", "23", "0" * 16),
    *("1234341221434321", ".", ",", "-", "+", "*", "**", "/", "//", "=", "==", "(", ")", "9**9**9"),
    *("= 4", "²", "٣", "１", "\0", "\n", " ", "\t", "\u2028", "\ud800", "$", "%", "\\$", "\\%"),
    *("nan", "inf", "1e999", "1_0", "0x1", "\\frac", "\\frac1", "\\sqrt", "\\text{ ", "\\div"),
    *("\\times", "\\left", "\\\\", "x=", "\\!", "^\\circ", "\\dfrac12"),
]


def garbage() -> st.SearchStrategy[str]:
    """Fragments that extraction looks for, in any order, some repeated into long runs."""
    fragment = st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=5))
    times = st.sampled_from([1, 1, 1, 2, 50, 600])
    run = st.builds(lambda text, times: text * times, fragment, times)
    return st.lists(run, max_size=12).map("".join)


def golden(task: str) -> list[dict[str, Any]]:
    lines = (PUBLISHED / "golden" / f"{task}_256.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def judged(task: Task) -> Iterator[tuple[dict[str, Any], Score]]:
    """Every published generation with the verdict on it."""
    for row in golden(task.name):
        problem = task.of_generation(row["question"], row["ground_truth"])
        yield row, task.verify(problem, row["generation"])


def published_mean(task: Task, as_parsed: Callable[[str | None], Any]) -> float:
    """Mean score in % of the published generations, each with the published answer and score."""
    scores = []
    for row, score in judged(task):
        assert as_parsed(score.answer) == row["parsed"]
        assert score.score == pytest.approx(row["score"])
        scores.append(score.score)
    return 100 * sum(scores) / len(scores)
