"""Rollouts, ours against plain: first equal greedy rollouts, then the time.

    python benchmarks/rollout.py

Ours samples one batch with the head at the block's masked positions; plain samples one by one with
the whole logits. Measured at the embedded shape, and with LLaDA's vocabulary on 50 million
parameters, where the 16 steps of one of eight blocks are timed. On a GPU use `--shape 8b`: every
8th step is checked within the rounding of bfloat16, and all steps are timed.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from typing import Any

import plain
import torch
from shapes import Shape
from torch import Tensor
from versus import Side, arguments, duel, each_shape, first_steps, report

from dopsd.models.llm_policy import LlmPolicy
from dopsd.rollout.sampler import GenerationRequest, StepInput, denoise, most_confident

ROWS, FEW = 16, 4  # rollouts of a batch; with LLaDA's vocabulary on a CPU
WARM_UP = 2  # steps of the warm-up if a whole rollout takes minutes
LOGITS = 0.25  # largest allowed difference of logits in bfloat16
PROBABILITY = 2**-7  # relative error of plain's confidence, which is rounded to bfloat16


def same(shape: Shape) -> int:
    """Check that greedy rollouts equal plain's in every token and step; return how many.

    Raises:
        AssertionError: if a token, or the step that committed it, differs.
    """
    policy, greedy = shape.policy, replace(shape.sampling, temperature=0.0)
    ours = denoise(
        policy,
        [GenerationRequest(str(i), 0, prompt, i) for i, prompt in enumerate(shape.prompts)],
        greedy,
    )
    for prompt, rollout in zip(shape.prompts, ours, strict=True):
        (theirs,) = plain.generate(policy, prompt[None], greedy)
        if not torch.equal(theirs.ids[len(prompt) :].cpu(), rollout.completion_ids):
            raise AssertionError("rollouts differ in a token")
        for step, state in enumerate(theirs.states):
            masked = state[len(prompt) :] == policy.mask_id
            if not torch.equal(masked.cpu(), rollout.revealed_at >= step):
                raise AssertionError(f"rollouts differ in their masks before step {step}")
    return len(ours)


def same_in_half_precision(shape: Shape) -> dict[str, float]:
    """Compare ours with plain at every 8th state of plain's greedy rollout, within rounding.

    Returns:
        The largest difference of logits, and how many tokens and steps were compared.

    Raises:
        AssertionError: if logits differ by more than LOGITS, or if ours commits another token or
            position although plain's leads by more than the state's largest difference explains.
    """
    policy, prompt, greedy = (
        shape.policy,
        shape.prompts[0],
        replace(shape.sampling, temperature=0.0),
    )
    (theirs,) = plain.generate(policy, prompt[None], greedy)
    start, per_block = len(prompt), greedy.steps * greedy.block_length // greedy.gen_length
    worst, tokens_compared, places_compared = 0.0, 0, 0
    for step in range(0, greedy.steps, 8):
        state, after = theirs.states[step], [*theirs.states[1:], theirs.ids][step]
        first, k = (
            start + step // per_block * greedy.block_length,
            greedy.num_transfer_tokens[step % per_block],
        )
        block = slice(first, first + greedy.block_length)
        slots = (state[block] == policy.mask_id).nonzero()[:, 0] + first
        rows = state.expand(len(shape.prompts), -1)
        with torch.no_grad():
            full = plain.logits_of(policy, state[None])[0, slots].float()
            full[:, policy.suppress_tokens] = -torch.inf
            ours = allowed_logits(policy, rows, slots)
            keys = torch.zeros(len(rows), dtype=torch.long, device=state.device)
            slots_of_rows = slots.expand(len(rows), -1)
            states = policy.hidden(rows, None)[:, slots]
            step_input = StepInput(states, slots_of_rows, slots_of_rows, keys)  # no noise
            where, tokens, _ = most_confident(policy, step_input, k, greedy)
        gap = (ours - full)[full > -torch.inf].abs().max().item()
        worst = max(worst, gap)
        best, sure = full.topk(2).values, full.log_softmax(-1).amax(-1).sort(descending=True)
        certain = {
            int(slot)
            for slot, (one, two) in zip(slots, best.tolist(), strict=True)
            if one - two > 2 * gap
        }
        for place, token in zip(where[0].tolist(), tokens[0].tolist(), strict=True):
            if place in certain and int(full[slots == place].argmax()) != token:
                raise AssertionError(
                    f"step {step}: another token at {place}, although its logit leads by more than"
                    f" {2 * gap}"
                )
            tokens_compared += place in certain
        if k < len(slots) and sure.values[k - 1] - sure.values[k] > 4 * gap + PROBABILITY:
            places_compared += 1
            if set(where[0].tolist()) != {
                int(slot) for slot in slots if after[slot] != policy.mask_id
            }:
                raise AssertionError(
                    f"step {step}: other positions, although their confidence leads by more than"
                    " rounding explains"
                )
    if not tokens_compared:
        raise AssertionError("no token leads by more than rounding: nothing was compared")
    if worst > LOGITS:
        raise AssertionError(f"logits differ by {worst:.2g}, more than {LOGITS}")
    return {
        "largest_logit_difference": worst,
        "tokens_compared": tokens_compared,
        "places_compared": places_compared,
    }


def allowed_logits(policy: LlmPolicy, rows: Tensor, slots: Tensor) -> Tensor:
    """Return the first row's sampleable logits at these positions, computed in a batch."""
    logits = policy.head(policy.hidden(rows, None)[0, slots]).float()
    logits[:, policy.suppress_tokens] = -torch.inf
    return logits


def timed(shape: Shape, repeats: int) -> dict[str, Any]:
    """Time both sides at a shape."""
    requests = [GenerationRequest(str(i), 0, prompt, i) for i, prompt in enumerate(shape.prompts)]

    first = partial(first_steps, shape.policy)

    def one(prompt: Tensor, steps: int | None = shape.steps) -> None:
        first(steps, lambda policy: plain.generate(policy, prompt[None], shape.sampling))

    def all_at_once(steps: int | None = shape.steps) -> None:
        first(steps, lambda policy: denoise(policy, requests, shape.sampling))

    few = WARM_UP if shape.steps else None
    # at a slow shape plain is timed on one prompt only, as it takes them one by one
    alone = 1 if shape.steps else len(requests)
    steps = shape.steps or shape.sampling.steps
    theirs = Side(
        lambda: [one(p) for p in shape.prompts[:alone]],
        alone / len(requests),
        lambda: one(shape.prompts[0], few),
    )
    ours = Side(all_at_once, warm_up=lambda: all_at_once(few))
    flops = (
        len(requests)
        * steps
        * shape.flops.forward(len(shape.prompts[0]) + shape.sampling.gen_length)
    )
    tokens = len(requests) * steps * shape.sampling.gen_length / shape.sampling.steps
    figures = asdict(duel(shape, theirs, ours, flops, tokens, repeats))
    facts = {
        "rows": len(requests),
        "plain_rows_timed": alone,
        "steps_timed": steps,
        "steps": shape.sampling.steps,
    }
    return facts | figures


def main() -> None:
    a = arguments(__doc__)
    results: dict[str, dict[str, Any]] = {}
    for shape in each_shape(a, ROWS):
        if shape.name == "vocabulary":
            shape = replace(shape, prompts=shape.prompts[:FEW])
        check: dict[str, Any] = (
            {"same_rollouts": same(shape.short)}
            if shape.is_exact
            else same_in_half_precision(shape)
        )
        results[shape.name] = {"checked": check, "timed": timed(shape, a.repeats)}
    report(results, a.out)


if __name__ == "__main__":
    main()
