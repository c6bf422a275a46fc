r"""Find the answer in a rollout, and put another answer in its place (own).

The answer is what a verifier reads in the format that tasks ask for: inside the first `<answer>`
the content of the last \boxed{}, or the text up to `</answer>`. A token can hold characters of the
answer and others, such as `{\`. Then all of the token counts, and its other characters are
tokenised again with the new answer, so that text outside the answer never changes.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from dopsd.core.rng import fold_in, key_from, uniform
from dopsd.core.tensors import first_index
from dopsd.core.types import Problem, Rollout
from dopsd.tasks.common.answers import last_boxed
from dopsd.tasks.common.task import AnswerTask, SolverTask, Task

if TYPE_CHECKING:
    from dopsd.models.policy import Policy, Text

OPEN, CLOSE, BOX = "<answer>", "</answer>", "\\boxed{"


class TextSpan(NamedTuple):
    """Offsets of an answer in a text."""

    start: int  # of the answer
    end: int  # of its end
    closed: int  # of the end of what closes it: `</answer>`, or the brace if no tag follows


@dataclass(frozen=True)
class AnswerSpan:
    """The answer of a completion: tokens [start, end), which may hold a few characters more."""

    start: int  # first token
    end: int  # token after the last one
    closed: int  # token after those that close the answer
    answer: str  # text of the answer
    before: str = ""  # characters of the first token before the answer; empty where the edges agree
    after: str = ""  # characters of the last token after the answer


@dataclass(frozen=True)
class FilledCompletion:
    """A completion with another answer."""

    ids: Tensor  # [G]
    start: int  # first token of the answer
    end: int  # token after the answer
    # token after the last one that the answer changed or moved: `end` where the answer is as long
    # as the one before, else the end of the closing tag
    closed: int


def answer_in_text(text: str) -> TextSpan | None:
    r"""Return where the answer is in a text; None without one.

    Args:
        text: a generation. The text of an `<answer>` counts without white space at its ends; an
            `<answer>` that never closes counts only with a \boxed{} in it.
    """
    opening = text.find(OPEN)
    if opening < 0:
        return None
    start = opening + len(OPEN)
    close = text.find(CLOSE, start)
    body = text[start : close if close >= 0 else len(text)]
    box = last_boxed(body)
    if box is None and close < 0:
        return None
    if box is None:
        answer = body.strip()
        start += body.find(answer)
    else:
        answer = box
        start += body.rfind(BOX) + len(BOX)
    end = start + len(answer)
    return TextSpan(start, end, close + len(CLOSE) if close >= 0 else end + 1)


def answer_span(text: Text, ids: Tensor, eos_id: int) -> AnswerSpan | None:
    """Return the tokens of the answer before the first end of text; None without an answer."""
    pieces = text.pieces(ids[: first_index(ids, eos_id)])
    whole, begins = "".join(pieces), [0, *accumulate(map(len, pieces))]
    found = answer_in_text(whole)
    if found is None:
        return None
    start = bisect_left(begins, max(b for b in begins if b <= found.start))
    end = bisect_left(begins, found.end)
    return AnswerSpan(
        start,
        end,
        bisect_left(begins, found.closed),
        whole[found.start : found.end],
        whole[begins[start] : found.start],
        whole[found.end : begins[end]],
    )


def with_answer(
    text: Text, ids: Tensor, span: AnswerSpan, answer: str, eos_id: int
) -> FilledCompletion | None:
    """Return a completion with another answer in its span.

    An answer of as many tokens replaces the span. Otherwise the tail is built again: the answer,
    the tokens that closed the old one with an end of turn that follows them, and end of text.

    Args:
        ids: [G], the completion.

    Returns:
        None if answer and closing tag do not fit, or the tokenizer cannot write the answer there.
    """
    inserted = span.before + answer + span.after
    tokens, head = text.tokens(inserted).to(ids), ids[: span.start]
    if text.decode(torch.cat([head, tokens])) != text.decode(head) + inserted:
        return None
    end, closing = span.start + len(tokens), ids[span.end : span.closed]
    if end == span.end:
        return FilledCompletion(torch.cat([head, tokens, ids[end:]]), span.start, end, end)
    closed = end + len(closing)
    if closed > len(ids):
        return None
    rest = ids[span.closed : first_index(ids, eos_id)]
    is_end = text.decode(rest).strip() in ("", text.end_of_turn)
    tail = [closing, rest] if is_end else [closing]
    filled = torch.cat([head, tokens, *tail])[: len(ids)]
    filled = pad(filled, (0, len(ids) - len(filled)), value=eos_id)
    return FilledCompletion(filled, span.start, end, closed)


def hints(rollout: Rollout, ratio: float, mask_id: int, eos_id: int) -> Tensor:
    """Mask an answer except for a random share of its tokens.

    Args:
        rollout: The answer; completion_ids is [G].
        ratio: Share of the text tokens that stay; end-of-text tokens never stay.

    Returns:
        Token ids [G].
    """
    ids = rollout.completion_ids
    text = (ids != eos_id).nonzero()[:, 0]
    key = torch.tensor(key_from("hints", rollout.problem_id, rollout.attempt), device=ids.device)
    positions = text[uniform(fold_in(key, text)).argsort()[: int(ratio * len(text))]]
    hint_ids = torch.full_like(ids, mask_id)
    hint_ids[positions] = ids[positions]
    return hint_ids


def answer_source(task: Task) -> str | None:
    """Return the name of the right answers that a task knows; None if it knows none."""
    if isinstance(task, AnswerTask):
        return "gold answer"
    return "solver's answer" if isinstance(task, SolverTask) else None


def answer_hints(
    policy: Policy,
    task: Task,
    problem: Problem,
    rollout: Rollout,
    ratio: float,
    after_eos: bool = False,
) -> Tensor:
    """Mask a completion except for a random share of a right answer in its answer's place.

    The place counts if the verifier calls the completion with the right answer right.

    Args:
        ratio: share of the answer's tokens that is shown, at least one; 0: none.
        after_eos: the text after the first end of text is scored, too.

    Returns:
        Token ids [G]; all masked where the completion has no usable answer.
    """
    ids, eos = rollout.completion_ids, policy.eos_id
    shown = torch.full_like(ids, policy.mask_id)
    text = (
        task.answer_text(problem)
        if isinstance(task, AnswerTask)
        else task.solver_answer(problem)
        if isinstance(task, SolverTask)
        else None
    )
    span = answer_span(policy.text, ids, eos)
    filled = with_answer(policy.text, ids, span, text, eos) if span and text is not None else None
    if filled is None or ratio == 0:
        return shown
    if not task.verify(problem, policy.text.decode(filled.ids, after_eos)).correct:
        return shown
    places = torch.arange(filled.start, filled.closed)
    key = torch.tensor(key_from("answer hints", rollout.problem_id))
    chosen = places[uniform(fold_in(key, places)).argsort()[: max(1, int(ratio * len(places)))]]
    shown[chosen] = filled.ids[chosen]
    return shown
