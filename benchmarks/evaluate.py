"""Greedy evaluation, ours against plain: first equal answers, then the time.

    python benchmarks/evaluate.py

Ours sorts batches by length, computes the head at masked positions only and stops at the end of
text; plain takes batches of 8 in file order. Measured on the embedded base with its validation
puzzles, and with LLaDA's vocabulary on 50 million parameters, where 2 of the 128 steps are timed.
On a GPU use `--shape 8b`.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import plain
import torch
from rollout import same_in_half_precision
from shapes import Shape
from torch import Tensor
from versus import Side, arguments, duel, each_shape, first_steps, report

from dopsd.config.loading import load_params
from dopsd.core.tensors import left_pad
from dopsd.models.llm_policy import LlmPolicy
from dopsd.rollout.config import Decoding
from dopsd.rollout.engine import denoise_all
from dopsd.rollout.prompts import PromptSet
from dopsd.rollout.sampler import GenerationRequest
from dopsd.tasks.registry import load_task

BATCH = 8  # as published
ROWS, ROOM = 32, 64  # puzzles, and tokens for each answer: one takes 36
# Steps timed with LLaDA's vocabulary: the first of a block, when most positions need the head.
FEW = 2


def by_eights(policy: LlmPolicy, prompts: list[Tensor], decoding: Decoding) -> list[Tensor]:
    """Return plain's completions, in batches in the order of the prompts."""
    completions: list[Tensor] = []
    for start in range(0, len(prompts), BATCH):
        ids, real = left_pad(prompts[start : start + BATCH], policy.eos_id)
        mask = (
            None
            if bool(real.all())
            else torch.cat([real, real.new_ones(len(ids), decoding.gen_length)], 1)
        )
        completions += [
            row.ids[ids.shape[1] :] for row in plain.generate(policy, ids, decoding, mask)
        ]
    return completions


def ours(policy: LlmPolicy, prompts: list[Tensor], decoding: Decoding) -> list[Tensor]:
    """Return our completions of all prompts."""
    requests = [GenerationRequest(str(i), 0, prompt, i) for i, prompt in enumerate(prompts)]
    return [rollout.completion_ids for rollout in denoise_all(policy, requests, decoding)]


def until_end(ids: Tensor, eos: int) -> list[int]:
    """Return the tokens before the first end of text."""
    row = ids.tolist()
    return row[: row.index(eos)] if eos in row else row


def same(shape: Shape) -> int:
    """Check that all tokens before the first end of text equal plain's; return how many answers.

    Ours is compared with and without stopping at the end of text.

    Raises:
        AssertionError: if an answer differs, or if no answer ends early.
    """
    greedy, eos = replace(shape.sampling, temperature=0.0), shape.policy.eos_id
    theirs = by_eights(shape.policy, shape.prompts, greedy)
    for stops in (False, True):
        for one, other in zip(
            ours(shape.policy, shape.prompts, replace(greedy, stop_after_eos=stops)),
            theirs,
            strict=True,
        ):
            if until_end(one, eos) != until_end(other, eos):
                raise AssertionError(f"answers differ (stop_after_eos {stops})")
    if shape.name == "embedded" and not any(
        eos in row[: -greedy.block_length].tolist() for row in theirs
    ):
        raise AssertionError("no answer ends before its last block: stopping was not tested")
    return len(theirs)


def timed(shape: Shape, repeats: int, stops: bool) -> dict[str, Any]:
    """Time both sides; `stops`: ours stops at the end of text."""
    greedy, steps = replace(shape.sampling, temperature=0.0), shape.steps or shape.sampling.steps
    decoded = replace(greedy, stop_after_eos=stops)
    first = partial(first_steps, shape.policy, shape.steps)
    theirs = Side(lambda: first(lambda policy: by_eights(policy, shape.prompts, greedy)))
    mine = Side(lambda: first(lambda policy: ours(policy, shape.prompts, decoded)))
    flops = _rows(shape, mine) * shape.flops.forward(len(shape.prompts[0]) + greedy.gen_length)
    tokens = len(shape.prompts) * steps * greedy.gen_length / greedy.steps
    figures = asdict(duel(shape, theirs, mine, flops, tokens, repeats))
    facts = {"answers": len(shape.prompts), "stop_after_eos": stops, "steps_timed": steps}
    return facts | figures


def _rows(shape: Shape, side: Side) -> int:
    """Return the sequences in all forwards of one call: fewer if texts end early."""
    sizes: list[int] = []
    trunk = shape.policy.core.model
    handle = trunk.register_forward_hook(lambda _, inputs, __: sizes.append(len(inputs[0])))
    side.work()
    handle.remove()
    return sum(sizes)


def asked(shape: Shape, rows: int) -> Shape:
    """Return the embedded shape with validation puzzles as prompts, and room for longer answers."""
    params = load_params(Path("params.yaml"))
    task = load_task("sudoku", params.data.sudoku)
    prompt_set = PromptSet(
        task,
        task.build()["validation"][:rows],
        "validation",
        params.model_of(task.name).prompt_style,
    )
    sampling = replace(shape.sampling, gen_length=ROOM, steps=ROOM // 2)
    prompts = prompt_set.prompts(shape.policy, params.sampling)
    return replace(shape, prompts=prompts, sampling=sampling)


def cut(shape: Shape) -> Shape:
    """Return the shape with prompts of unequal length, so that batches are padded."""
    return replace(shape, prompts=[prompt[i % 5 :] for i, prompt in enumerate(shape.prompts)])


def main() -> None:
    a = arguments(__doc__)
    results: dict[str, dict[str, Any]] = {}
    for shape in each_shape(a, BATCH):
        if shape.name != "embedded":
            exact = shape.is_exact
            check: dict[str, Any] = (
                {"same_answers": same(cut(shape.short))} if exact else same_in_half_precision(shape)
            )
            few = replace(shape, steps=FEW if shape.steps else None)
            results[shape.name] = {"checked": check, "timed": timed(few, min(a.repeats, 3), False)}
            continue
        shape = asked(shape, ROWS)
        check = {"same_answers": same(cut(shape))}
        for name, stops in (
            (shape.name, False),
            (f"{shape.name}, stopped at the end of the text", True),
        ):
            results[name] = {"checked": check, "timed": timed(shape, a.repeats, stops)}
    report(results, a.out)


if __name__ == "__main__":
    main()
