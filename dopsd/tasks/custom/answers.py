r"""Find the answer in a generation: in \boxed{}, in a tag, after a marker, by a pattern, or all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dopsd.tasks.common.answers import BOX, braced, closed, last_boxed
from dopsd.tasks.custom.patterns import last_match

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dopsd.tasks.custom.config import AnswerFormat


def _boxed(text: str, which: str) -> str | None:
    if which == "last":
        return last_boxed(text)
    start = text.find(BOX + "{")
    return braced(text, start) if start >= 0 else None


def _tag(text: str, tag: str) -> str | None:
    return closed(text, tag)


def _after(text: str, marker: str) -> str | None:
    _, separator, rest = text.rpartition(marker)
    lines = rest.lstrip(" \t").splitlines() if separator else []
    return lines[0] if lines else None


def _text(text: str, which: str) -> str | None:
    if which == "whole":
        return text
    return next((line for line in reversed(text.splitlines()) if line.strip()), None)


READERS = {"boxed": _boxed, "tag": _tag, "after": _after, "regex": last_match, "text": _text}


def extract(text: str, formats: Sequence[AnswerFormat]) -> str | None:
    """Return the answer by the first format that the text has, without white space at its ends.

    Args:
        text: a generation.
        formats: the formats, in order.

    Returns:
        The answer, or None if no format has one, or only a blank one.
    """
    for answer_format in formats:
        ((name, value),) = answer_format.chosen.items()
        answer = (READERS[name](text, value) or "").strip()
        if answer:
            return answer
    return None


def written(answer: str, answer_format: AnswerFormat) -> str | None:
    """Return the shortest generation that gives this answer in a format.

    Returns:
        The text; None for a pattern, which has no one text.
    """
    ((name, value),) = answer_format.chosen.items()
    shapes = {
        "boxed": f"{BOX}{{{answer}}}",
        "tag": f"<{value}>{answer}</{value}>",
        "after": f"{value} {answer}",
        "text": answer,
    }
    return shapes.get(name)
