r"""Answer extraction that tasks share: tags, \boxed{}, and the score by one of two rules.

Every function is one pass over the text, without backtracking: a generation may be garbage of any
form and length.
"""

import re
from collections.abc import Iterator

from dopsd.core.types import Score

BOX, FRAME = "\\boxed", "\\fbox"
BRACES = re.compile("[{}]")
TAGS = re.compile("</?(?:reasoning|answer)>")
SCORED_BY = "scored_by"  # in extra of a problem: digest of what decides the scores of its answers
# gold answer of a question that a person typed; no row has it, and every answer scores 0
UNKNOWN = ""


def closed(text: str, tag: str) -> str | None:
    """Return the text inside the first closed <tag>, as written; None without one."""
    start = text.find(f"<{tag}>")
    end = text.find(f"</{tag}>", start + len(tag) + 2) if start >= 0 else -1
    return text[start + len(tag) + 2 : end] if end >= 0 else None


def laid_out(reasoning: str, answer: str) -> str:
    r"""Return reasoning, without its own tags, and answer as prompts of \boxed{} ask for them."""
    reasoning = TAGS.sub("", reasoning)
    return (
        f"<reasoning>\n{reasoning.strip()}\n</reasoning>\n<answer>\n{BOX}{{{answer}}}\n</answer>\n"
    )


def braced(text: str, start: int) -> str | None:
    """Return the text between the first brace from `start` on and its closing brace, or None."""
    opened = text.find("{", start)
    depth = 0
    for brace in BRACES.finditer(text, max(opened, 0)):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return text[opened + 1 : brace.start()]
    return None


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last \boxed{}.

    Returns:
        The text, or None if there is no box, no brace follows it, or the brace stays open.
    """
    start = text.rfind(BOX + "{")
    return braced(text, start) if start >= 0 and start == text.rfind(BOX) else None


def published_box(text: str) -> str | None:
    r"""Return what the published MATH scorer takes from a text (Hendrycks et al. 2021).

    That is what follows the last `\boxed ` with a space, up to a dollar sign; without such a box
    the content of the last \boxed{}; without any the last \fbox{} as it stands; else the whole
    text.

    Returns:
        The text, or None if the last box stays open.
    """
    if BOX + " " in text:
        return text.rpartition(BOX + " ")[2].partition("$")[0]
    start = text.rfind(BOX) if BOX in text else text.rfind(FRAME)
    if start < 0:
        return text
    depth = 0
    for brace in BRACES.finditer(text, start):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0 and brace[0] == "}":
            box = text[start : brace.end()]
            return box[len(BOX) + 1 : -1] if box.startswith(BOX + "{") else box
    return None


def boxed_to_brace(text: str) -> Iterator[str]:
    r"""Yield the content of each \boxed{...}, up to the first closing brace on its line.

    The published GSM8K scorer cuts boxes in this way.
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
    """Return the score of an answer by one of two rules; both scores become figures.

    Args:
        rule: published or strict, the rule that decides.
        published: answer and score in [0, 1] by the published rule.
        strict: answer and score in [0, 1] by the strict rule.
    """
    answer, score = {"published": published, "strict": strict}[rule]
    return Score(
        answer,
        score,
        score == 1.0,
        {"published": published[1], "strict": strict[1], **extra_figures},
    )
