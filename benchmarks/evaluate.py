"""Greedy evaluation: ours (length-sorted batches, head at the masked positions, stop at the end)
against plain (batch 8).

`python benchmarks/evaluate.py`: the embedded base on its validation puzzles, first the same
answers, then the time; and LLaDA's vocabulary on 50 million parameters, a batch of 8, where 2 of
the 128 steps are timed. On a GPU: `--shape 8b`.
"""

from __future__ import annotations

from dataclasses import asdict, replace
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
from dopsd.rollout.engine import denoise_all
from dopsd.rollout.prompts import PromptSet
from dopsd.rollout.sampler import Decoding, GenerationRequest
from dopsd.tasks.registry import load_task

BATCH = 8  # as published
ROWS, ROOM = 32, 64  # puzzles, and tokens for each: an answer takes 36
# steps timed at LLaDA's vocabulary: the first of a block, in which most positions need the head
FEW = 2


def by_eights(policy: LlmPolicy, prompts: list[Tensor], decoding: Decoding) -> list[Tensor]:
    """Completions, in batches in the order of the file."""
    found: list[Tensor] = []
    for start in range(0, len(prompts), BATCH):
        ids, real = left_pad(prompts[start : start + BATCH], policy.eos_id)
        mask = (
            None
            if bool(real.all())
            else torch.cat([real, real.new_ones(len(ids), decoding.gen_length)], 1)
        )
        found += [row.ids[ids.shape[1] :] for row in plain.generate(policy, ids, decoding, mask)]
    return found


def ours(policy: LlmPolicy, prompts: list[Tensor], decoding: Decoding) -> list[Tensor]:
    requests = [GenerationRequest(str(i), 0, prompt, i) for i, prompt in enumerate(prompts)]
    return [rollout.completion_ids for rollout in denoise_all(policy, requests, decoding)]


def until_end(ids: Tensor, eos: int) -> list[int]:
    row = ids.tolist()
    return row[: row.index(eos)] if eos in row else row


def same(shape: Shape) -> int:
    """Every token before the first end of text is plain's, stopped there or not. How many answers
    were compared.
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
        raise AssertionError(
            "no answer ends before its last block: nothing was there to be stopped"
        )
    return len(theirs)


def timed(shape: Shape, repeats: int, stops: bool) -> dict[str, Any]:
    greedy, steps = replace(shape.sampling, temperature=0.0), shape.steps or shape.sampling.steps
    decoded = replace(greedy, stop_after_eos=stops)
    theirs = Side(
        lambda: first_steps(shape, lambda policy: by_eights(policy, shape.prompts, greedy))
    )
    mine = Side(lambda: first_steps(shape, lambda policy: ours(policy, shape.prompts, decoded)))
    flops = _rows(shape, mine) * shape.flops.forward(len(shape.prompts[0]) + greedy.gen_length)
    tokens = len(shape.prompts) * steps * greedy.gen_length / greedy.steps
    found = duel(shape, theirs, mine, flops, tokens, repeats)
    return {"answers": len(shape.prompts), "stop_after_eos": stops, "steps_timed": steps} | asdict(
        found
    )


def _rows(shape: Shape, side: Side) -> int:
    """Sequences in all forwards of one call: fewer where texts end early."""
    seen: list[int] = []
    trunk = shape.policy.core.model
    handle = trunk.register_forward_hook(lambda _, given, __: seen.append(len(given[0])))
    side.work()
    handle.remove()
    return sum(seen)


def asked(shape: Shape, rows: int) -> Shape:
    """The embedded shape with puzzles of the validation split for its prompts, and room for answers
    longer than they are.
    """
    params = load_params(Path("params.yaml"))
    task = load_task("sudoku", params.data.sudoku)
    found = PromptSet(
        task,
        task.build()["validation"][:rows],
        "validation",
        params.model_of(task.name).prompt_style,
    )
    sampling = replace(shape.sampling, gen_length=ROOM, steps=ROOM // 2)
    return replace(shape, prompts=found.prompts(shape.policy, params.sampling), sampling=sampling)


def cut(shape: Shape) -> Shape:
    """The same with prompts of unequal length, so that batches are padded."""
    return replace(shape, prompts=[prompt[i % 5 :] for i, prompt in enumerate(shape.prompts)])


def main() -> None:
    a = arguments(__doc__)
    found: dict[str, dict[str, Any]] = {}
    for shape in each_shape(a, BATCH):
        if shape.name != "embedded":
            exact = shape.is_exact
            check: dict[str, Any] = (
                {"same_answers": same(cut(shape.short))} if exact else same_in_half_precision(shape)
            )
            few = replace(shape, steps=FEW if shape.steps else None)
            found[shape.name] = {"checked": check, "timed": timed(few, min(a.repeats, 3), False)}
            continue
        shape = asked(shape, ROWS)
        check = {"same_answers": same(cut(shape))}
        for name, stops in (
            (shape.name, False),
            (f"{shape.name}, stopped at the end of the text", True),
        ):
            found[name] = {"checked": check, "timed": timed(shape, a.repeats, stops)}
    report(found, a.out)


if __name__ == "__main__":
    main()
