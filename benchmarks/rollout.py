"""Rollouts: ours (one batch, head at the block's masked positions) against plain (one by one, the whole logits).

`python benchmarks/rollout.py`: first the same greedy rollouts of the embedded base, token for token; then the embedded
shape, and LLaDA's vocabulary on 50 million parameters, where the 16 steps of one block of the eight are timed.
On a GPU: `--shape 8b`, where every 8th step is checked, and all are timed.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import plain
import torch
from shapes import Shape
from torch import Tensor
from versus import Side, arguments, duel, each_shape, first_steps, report

from dopsd.sampling import Draw, denoise

LOGITS = 0.5  # largest difference of logits in bfloat16


def same(shape: Shape) -> int:
    """Greedy: every token, and the step that committed it, are plain's. How many rollouts were compared."""
    policy, greedy = shape.policy, replace(shape.sampling, temperature=0.0)
    ours = denoise(policy, [Draw(str(i), 0, prompt, i) for i, prompt in enumerate(shape.prompts)], greedy)
    for prompt, rollout in zip(shape.prompts, ours, strict=True):
        (theirs,) = plain.generate(policy, prompt[None], greedy)
        if not torch.equal(theirs.ids[len(prompt) :], rollout.completion_ids):
            raise AssertionError("rollouts differ in a token")
        for step, state in enumerate(theirs.states):
            if not torch.equal(state[len(prompt) :] == policy.mask_id, rollout.revealed_at >= step):
                raise AssertionError(f"rollouts differ in what stands before step {step}")
    return len(ours)


def same_at_each_step(shape: Shape) -> dict[str, float]:
    """In half precision batches round differently: logits at the states of plain's own greedy rollout, and what is committed.

    Raises AssertionError where a token or its place differs although the logits leave no doubt about it.
    """
    policy, prompt = shape.policy, shape.prompts[0]
    greedy = replace(shape.sampling, temperature=0.0)
    (theirs,) = plain.generate(policy, prompt[None], greedy)
    worst, doubtful, start = 0.0, 0, len(prompt)
    with torch.no_grad():
        for step in range(0, greedy.steps, greedy.steps // 16):
            state, block = theirs.states[step], step * greedy.block_length * (greedy.gen_length // greedy.block_length)
            first = start + block // greedy.steps // greedy.block_length * greedy.block_length
            slots = (state[first : first + greedy.block_length] == policy.mask_id).nonzero()[:, 0] + first
            full = plain.logits_of(policy, state[None])[0, slots].float()
            rows = state.expand(len(shape.prompts), -1)  # ours: in a batch
            ours = policy.head(policy.hidden(rows, None)[0, slots]).float()
            gap = (ours - full).abs().max().item()
            worst = max(worst, gap)
            best = full.topk(2).values
            is_clear = best[:, 0] - best[:, 1] > 2 * gap
            if not torch.equal(ours.argmax(-1)[is_clear], full.argmax(-1)[is_clear]):
                raise AssertionError(f"step {step}: a token differs although its logit leads by more than {2 * gap:.2g}")
            doubtful += int((~is_clear).sum())
    if worst > LOGITS:
        raise AssertionError(f"logits differ by {worst:.2g}, more than {LOGITS}")
    return {"largest_logit_difference": worst, "positions_too_close_to_call": doubtful}


def timed(shape: Shape, repeats: int) -> dict[str, Any]:
    draws = [Draw(str(i), 0, prompt, i) for i, prompt in enumerate(shape.prompts)]

    def one(prompt: Tensor) -> None:
        first_steps(shape, lambda policy: plain.generate(policy, prompt[None], shape.sampling))

    alone = 1 if shape.steps else len(draws)  # of a slow shape, one prompt stands for all: plain takes them one by one
    steps = shape.steps or shape.sampling.steps
    theirs = Side(lambda: [one(prompt) for prompt in shape.prompts[:alone]], alone / len(draws))
    ours = Side(lambda: first_steps(shape, lambda policy: denoise(policy, draws, shape.sampling)))
    flops = len(draws) * steps * shape.flops.forward(len(shape.prompts[0]) + shape.sampling.gen_length)
    found = duel(shape, theirs, ours, flops, repeats)
    tokens = len(draws) * steps * shape.sampling.gen_length / shape.sampling.steps
    facts = {"rows": len(draws), "plain_rows_timed": alone, "steps_timed": steps, "steps": shape.sampling.steps}
    return facts | asdict(found) | {"tokens_per_second": tokens / found.ours_seconds}


def main() -> None:
    a = arguments(__doc__)
    found: dict[str, dict[str, Any]] = {}
    for shape in each_shape(a, 16):
        check: dict[str, Any] = {"same_rollouts": same(shape)} if shape.name == "embedded" else {}
        check |= same_at_each_step(shape) if shape.name == "8b" else {}
        found[shape.name] = {"checked": check, "timed": timed(shape, a.repeats)}
    report(found, a.out)


if __name__ == "__main__":
    main()
