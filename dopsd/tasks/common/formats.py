r"""Find the answer in a generation: in \boxed{}, in a tag, after a marker, by a pattern, or all."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any, Literal, Self

import regex
from pydantic import BeforeValidator, Field, field_validator, model_validator

from dopsd.core.progress import log
from dopsd.core.settings import Section
from dopsd.core.types import Problem, Score
from dopsd.tasks.common.answers import BOX, UNKNOWN, braced, closed, last_boxed, score_by_rule
from dopsd.tasks.common.asking import AskingTask
from dopsd.tasks.common.rows import new_problem

Tag = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")]
Text = Annotated[str, Field(min_length=1)]
ANSWER = "{answer}"  # in a pattern: the row's answer


def valid_pattern(pattern: str) -> str:
    """Return the pattern if it is a regular expression."""
    try:
        regex.compile(pattern.replace(ANSWER, "x"))
    except regex.error as error:
        raise ValueError(f"not a regular expression: {error}") from error
    return pattern


class AnswerFormat(Section):
    """Where the answer is in a generation; exactly one key."""

    boxed: Literal["first", "last"] | None = None  # in \boxed{}: the first or the last one
    tag: Tag | None = None  # the text in the first <tag>...</tag>
    after: Text | None = None  # after the last such marker, up to the end of its line
    regex: Text | None = None  # the last match; its group 1, if the pattern has one
    text: Literal["whole", "last_line"] | None = None  # the whole generation, or its last line

    @field_validator("regex")
    @classmethod
    def pattern_compiles(cls, pattern: str | None) -> str | None:
        """Refuse what is no regular expression."""
        return None if pattern is None else valid_pattern(pattern)

    @model_validator(mode="after")
    def one_key(self) -> Self:
        """Require exactly one key."""
        if len(self.chosen) != 1:
            raise ValueError(
                f"expected one key of {', '.join(type(self).model_fields)}, found"
                f" {', '.join(self.chosen) or 'none'}"
            )
        return self

    @property
    def chosen(self) -> dict[str, str]:
        """The keys that are set, with their values."""
        return {name: value for name, value in vars(self).items() if value is not None}


def _listed(value: Any) -> Any:  # noqa: ANN401  # any YAML value
    """Return a list; a single value becomes one."""
    return value if isinstance(value, list) else [value]


Formats = Annotated[list[AnswerFormat], Field(min_length=1), BeforeValidator(_listed)]

SECONDS = 1.0  # time limit of a search
FLAGS = regex.V0  # the syntax of the standard library's module re


@cache
def _compiled(pattern: str) -> Any:  # noqa: ANN401  # the library is not typed
    return regex.compile(pattern, FLAGS)


def matches(pattern: str, text: str) -> bool:
    """Return whether a whole text matches; False after SECONDS."""
    try:
        return _compiled(pattern).fullmatch(text, timeout=SECONDS) is not None
    except TimeoutError:
        _note(pattern)
        return False


def search(pattern: str, text: str) -> bool:
    """Return whether a text contains a match; False after SECONDS."""
    try:
        return _compiled(pattern).search(text, timeout=SECONDS) is not None
    except TimeoutError:
        _note(pattern)
        return False


def last_match(text: str, pattern: str) -> str | None:
    """Return group 1 of the last match, or the match; None without one, and after SECONDS."""
    try:
        matched = next(
            iter(deque(_compiled(pattern).finditer(text, timeout=SECONDS), maxlen=1)), None
        )
    except TimeoutError:
        _note(pattern)
        return None
    if matched is None:
        return None
    answer: str | None = matched[1] if matched.re.groups else matched[0]
    return answer


@cache
def _note(pattern: str) -> None:
    log(
        f"pattern {pattern[:80]}: no result in {SECONDS:.0f} s on one answer, which counts as no"
        " match; avoid nested repetitions such as (a+)+"
    )


def _boxed(text: str, which: str) -> str | None:
    if which == "last":
        return last_boxed(text)
    start = text.find(BOX + "{")
    return braced(text, start) if start >= 0 else None


def _after(text: str, marker: str) -> str | None:
    _, separator, rest = text.rpartition(marker)
    lines = rest.lstrip(" \t").splitlines() if separator else []
    return lines[0] if lines else None


def _text(text: str, which: str) -> str | None:
    if which == "whole":
        return text
    return next((line for line in reversed(text.splitlines()) if line.strip()), None)


READERS = {"boxed": _boxed, "tag": closed, "after": _after, "regex": last_match, "text": _text}


def extract(text: str, formats: Sequence[AnswerFormat]) -> str | None:
    """Return the stripped answer by the first format that has one; None if no format has."""
    for answer_format in formats:
        ((name, value),) = answer_format.chosen.items()
        answer = (READERS[name](text, value) or "").strip()
        if answer:
            return answer
    return None


def written(answer: str, answer_format: AnswerFormat) -> str | None:
    """Return the shortest generation with this answer; None for a pattern."""
    ((name, value),) = answer_format.chosen.items()
    shapes = {
        "boxed": f"{BOX}{{{answer}}}",
        "tag": f"<{value}>{answer}</{value}>",
        "after": f"{value} {answer}",
        "text": answer,
    }
    return shapes.get(name)


class FormattedTask(AskingTask):
    """Base class of tasks whose settings say where the answer is in a generation."""

    answer_format: Sequence[AnswerFormat]

    @abstractmethod
    def score(self, problem: Problem, answer: str | None) -> float:
        """Return the score of an answer that was found, from 0 to 1; 0 for none."""

    def ask(self, text: str) -> Problem:
        """Return the problem of a question that a person typed, without a gold answer."""
        return new_problem(self.name, text, UNKNOWN)

    def instructed(self, problem: Problem) -> str:
        """Return the instructions, if there are any, followed by the problem."""
        return super().instructed(problem) if self.instructions else problem.prompt

    def answer_text(self, problem: Problem) -> str | None:
        """Return the gold answer, as the row has it; None if it is unknown."""
        return problem.answer or None

    def verify(self, problem: Problem, text: str) -> Score:
        """Return the answer in a generation, and its score."""
        found = extract(text, self.answer_format), extract(text, self.answer_format[:1])
        scores = {answer: self.score(problem, answer) for answer in {*found}}
        published, strict = ((answer, scores[answer]) for answer in found)
        return score_by_rule(self.config.scoring, published, strict)
