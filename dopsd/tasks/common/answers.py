r"""Pieces of answer extraction that tasks share: tags, \boxed{}, and the verdict of two rules.

All are single passes over the text, without backtracking: a generation is garbage until shown
otherwise.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dopsd.core.types import Score

if TYPE_CHECKING:
    from collections.abc import Iterator

BOX = "\\boxed"
BRACES = re.compile("[{}]")
# gold answer of a question typed by a person: rows cannot have it, and nothing scores against it
UNKNOWN = ""


def closed(text: str, tag: str) -> str | None:
    """What stands in the first closed <tag>, as written; None without one."""
    start = text.find(f"<{tag}>")
    end = text.find(f"</{tag}>", start + len(tag) + 2) if start >= 0 else -1
    return text[start + len(tag) + 2 : end] if end >= 0 else None


def braced(text: str, start: int) -> str | None:
    """What stands between the first brace from `start` on and the one that closes it; None when it
    stays open.
    """
    opened = text.find("{", start)
    depth = 0
    for brace in BRACES.finditer(text, max(opened, 0)):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return text[opened + 1 : brace.start()]
    return None


def last_boxed(text: str) -> str | None:
    r"""Content of the last \boxed{}; None where there is none, where it stays open, or where no
    brace follows.
    """
    start = text.rfind(BOX + "{")
    return braced(text, start) if start >= 0 and start == text.rfind(BOX) else None


def boxed_to_brace(text: str) -> Iterator[str]:
    r"""Contents of each \boxed{...} up to the first closing brace on its line, as the published
    GSM8K scorer cuts them.
    """
    marker = BOX + "{"
    for line in text.split("\n"):
        start = line.find(marker)
        while start >= 0:
            start += len(marker)
            end = line.find("}", start)
            if end < 0:
                break
            yield line[start:end]
            start = line.find(marker, end)


def score_by_rule(
    rule: str,
    published: tuple[str | None, float],
    strict: tuple[str | None, float],
    **extra_figures: float,
) -> Score:
    """The verdict by `rule` of two (answer, score) pairs; both scores are kept as figures, with
    what the task adds.
    """
    answer, score = {"published": published, "strict": strict}[rule]
    return Score(
        answer,
        score,
        score == 1.0,
        {"published": published[1], "strict": strict[1], **extra_figures},
    )
