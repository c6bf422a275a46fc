"""Losses against literal computations, row by row, with a policy that left its base."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import cycle

import pytest
import torch
from accelerate import Accelerator
from conftest import write_params
from torch import Tensor
from torch.nn.functional import logsigmoid

from dopsd.config.loading import load_params
from dopsd.core.types import Score
from dopsd.rollout.collector import RolloutCollector
from dopsd.training.trainer import Trainer


def moved(method: str, is_moved: bool = True, **changes: object) -> Trainer:
    """A loop before its first collect; changes with two underscores are of any section."""
    write_params(
        **{k if "__" in k else f"method__{method}__{k}": value for k, value in changes.items()}
    )
    return shifted(Trainer(load_params().run("sudoku", method, 0), Accelerator(cpu=True)), is_moved)


def shifted(loop: Trainer, is_moved: bool = True) -> Trainer:
    """Move the policy away from its base."""
    draw = torch.Generator().manual_seed(1)
    for p in loop.parameters.values():
        p.data += 0.05 * is_moved * torch.randn(p.shape, generator=draw)
    return loop


def collected(method: str, is_moved: bool = True, **changes: object):
    """A loop after its first collect, and its first batch."""
    loop = moved(method, is_moved, **changes)
    while not loop.waiting:
        loop.collect()
    return loop, loop.waiting[0][0]


def graded(monkeypatch: pytest.MonkeyPatch, *scores: list[float]) -> None:
    """Let the attempts at the problems of each collect have these scores; 1 is right."""
    sample = RolloutCollector.sample

    def sampled(self, *given, **named):
        return [
            replace(group, scores=tuple(Score("a", float(s), s == 1) for s in marks))
            for group, marks in zip(sample(self, *given, **named), cycle(scores), strict=False)
        ]

    monkeypatch.setattr(RolloutCollector, "sample", sampled)


@contextmanager
def as_base(loop: Trainer) -> Iterator[None]:
    """Without `policy.reference()`: LoRA's B matrices at zero."""
    kept = {name: p.detach().clone() for name, p in loop.parameters.items() if "lora_B" in name}
    assert kept
    with torch.no_grad():
        for name in kept:
            loop.parameters[name].zero_()
        yield
        for name, value in kept.items():
            loop.parameters[name].copy_(value)


def logps(loop: Trainer, prompt: Tensor, completion: Tensor) -> Tensor:
    """ln p of every token at every place of one completion, nothing padded. [P], [G] -> [G, V]."""
    ids = torch.cat([prompt, completion])[None]
    return loop.policy.head(loop.policy.hidden(ids, None))[0, -len(completion) :].log_softmax(-1)


def gradients(loop: Trainer, total: Tensor) -> dict[str, Tensor]:
    loop.policy.core.zero_grad()
    total.backward()
    return {name: p.grad.clone() for name, p in loop.parameters.items()}


def assert_same(loop: Trainer, batch, literal: Tensor) -> None:
    """The method's total and its gradient are those of the literal one."""
    found = loop.algorithm.loss(loop.policy, batch).total
    assert found.item() == pytest.approx(literal.item(), rel=1e-4, abs=1e-5)
    ours, theirs = gradients(loop, found), gradients(loop, literal)
    assert max(value.abs().max() for value in theirs.values()) > 1e-4
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-3, atol=2e-5, msg=name)


SQUARED = {"objective": "squared", "token_weight": "one", "clip_range": 0.2}  # GDSD
TOKEN = {"objective": "token", "masks": "share", "full_mask": True, "tail": "context"}
ADVANTAGES = torch.tensor([1.0, -1.0, 0.5, -0.5, 2.0, -1.5])
ESPO = {"kl_weight": 0.5, "psi": 0.02, "group_size": 3, "iterations": 1}


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("espo", ESPO | {"clip_range": 0.9}),
        ("espo", ESPO | SQUARED | {"clip_range": 0.9, "psi": 2.0}),
        ("espo", ESPO | TOKEN | {"clip_range": 0.9}),
        ("just_grpo", {"group_size": 2}),
        ("spg", {"group_size": 3, "iterations": 1}),
        ("temporal", {"iterations": 1, "weight": "none"}),
        ("trace_rl", {"group_size": 3, "kl_weight": 0.5}),
        ("wd1", {"group_size": 3, "iterations": 1}),
    ],
)
def test_the_gradient_is_that_of_finite_differences(project, method: str, changes: dict):
    """Along a random direction: the central difference of the loss, in float64."""
    loop, batch = collected(method, **changes)
    if method == "espo":
        batch = batch.with_tensors(advantage=ADVANTAGES)
    loop.policy.core.double()
    for p in loop.parameters.values():
        p.data += 0.01  # a later update: ratios are not 1
    found = gradients(loop, loop.algorithm.loss(loop.policy, batch).total)
    draw = torch.Generator().manual_seed(2)
    way = {name: torch.randn(p.shape, generator=draw) for name, p in loop.parameters.items()}
    losses = []
    with torch.no_grad():
        for step in (1e-3, -2e-3):
            for name, p in loop.parameters.items():
                p += step * way[name]
            losses.append(loop.algorithm.loss(loop.policy, batch).total.double().item())
    slope = sum((found[name] * way[name]).sum().item() for name in way)
    assert abs(slope) > 0.05
    assert (losses[0] - losses[1]) / 2e-3 == pytest.approx(slope, rel=0.02), slope


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("d_opsd", {}),
        ("diffu_grpo", {"group_size": 2, "iterations": 1}),
        ("espo", {"group_size": 3, "iterations": 1}),
        ("espo", {"group_size": 3, "iterations": 1} | SQUARED),
        ("espo", {"group_size": 3, "iterations": 1} | TOKEN),
        ("just_grpo", {"group_size": 3}),
        ("spg", {"group_size": 3, "iterations": 1}),
        ("temporal", {"iterations": 1, "target": "all_future"}),
        ("trace_rl", {"group_size": 3}),
        ("wd1", {"group_size": 3, "iterations": 1}),
    ],
)
def test_rows_alone_add_up_to_the_loss_of_all(project, method: str, changes: dict):
    loop, batch = collected(method, **changes)
    alone = [loop.algorithm.loss(loop.policy, part).total.item() for part in batch.split(1)]
    assert len(alone) > 1
    assert sum(alone) == pytest.approx(
        loop.algorithm.loss(loop.policy, batch).total.item(), abs=1e-5
    )


def test_vrpo(project):
    """Prompts of their own, masks where they were drawn and after the end, the base's bounds."""
    loop, batch = collected("vrpo", draws=3)
    mask_id, length = loop.policy.mask_id, batch.targets.shape[-1]

    def bound(row: int, side: int) -> Tensor:
        target, end = batch.targets[row, side], int(batch.length[row, side])
        prompt, total = batch.prompt[row][batch.mask[row]], torch.zeros(())
        for loss_mask in batch.loss_mask[row, side]:
            assert 1 <= int(loss_mask.sum()) <= end and not loss_mask[end:].any()
            seen = target.clone()
            seen[loss_mask] = mask_id
            seen[end:] = mask_id
            places = loss_mask.nonzero()[:, 0]
            summed = logps(loop, prompt, seen)[places, target[places]].sum()
            total = total + summed * end / len(places)
        return total / batch.loss_mask.shape[2]

    with as_base(loop):
        reference = [[bound(row, side).item() for side in (0, 1)] for row in range(len(batch))]
    literal = torch.zeros(())
    for row in range(len(batch)):
        good, bad = bound(row, 0), bound(row, 1)
        margin = 0.2 * ((good - reference[row][0]) - (bad - reference[row][1]))
        literal = literal - logsigmoid(margin) - 0.05 * good / batch.length[row, 0]
    assert length == 40
    assert batch.ref_bounds.tolist() == [pytest.approx(pair, rel=1e-4) for pair in reference]
    assert_same(loop, batch, literal)


@pytest.mark.parametrize("pairs", ["initial", "current"])
def test_vrpo_pairs_are_the_initial_policys_or_the_current_ones(project, pairs: str):
    """Noise is the same for both, so that rollouts differ by the policy alone."""
    texts = []
    for is_moved in (False, True):
        loop = moved("vrpo", is_moved, pairs=pairs)
        while not loop.waiting:
            loop.collect()
        texts.append(loop.waiting[0][0].targets)
    is_same = texts[0].shape == texts[1].shape and torch.equal(*texts)
    assert is_same == (pairs == "initial")


def test_diffu_grpo(project):
    """Old log-probabilities are the sampling policy's, the reference's those of the base."""
    loop, batch = collected("diffu_grpo", group_size=3, iterations=1)
    length, mask_id = batch.targets.shape[1], loop.policy.mask_id

    def each(row: int) -> Tensor:
        asked = batch.ids[row, :-length][batch.mask[row, :-length]]
        found = logps(loop, asked, torch.full((length,), mask_id))
        return found.gather(1, batch.targets[row][:, None])[:, 0]

    with torch.no_grad():
        old = torch.stack([each(row) for row in range(len(batch))])
    with as_base(loop):
        reference = torch.stack([each(row) for row in range(len(batch))])
    assert (old - reference).abs().max() > 0.01
    torch.testing.assert_close(batch.old_logps, old, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(batch.ref_logps, reference, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        for p in loop.parameters.values():
            p.add_(0.01)  # a later iteration
    literal = torch.zeros(())
    for row in range(len(batch)):
        now, end = each(row), int(batch.completion_mask[row].sum())
        ratio, gap, a = (now - old[row]).exp(), reference[row] - now, batch.advantage[row]
        loss = 0.04 * (gap.exp() - gap - 1) - torch.minimum(ratio * a, ratio.clamp(0.5, 1.5) * a)
        literal = literal + loss[:end].sum()
    assert_same(loop, batch, literal)


def test_d3llm(project):
    """Clean before the block, masked after it; inside it what was written last."""
    loop, batch = collected("d3llm")
    length, mask_id = batch.targets.shape[1], loop.policy.mask_id
    literal = torch.zeros(())
    for row in range(len(batch)):
        target, prompt = batch.targets[row], batch.ids[row, :-length][batch.mask[row, :-length]]
        block = (batch.loss_mask[row] | batch.other_loss_mask[row]).nonzero()[:, 0]
        assert block.tolist() == list(range(int(block[0]), int(block[-1]) + 1))
        assert not (batch.loss_mask & batch.other_loss_mask).any()
        cross, entropies, right = torch.zeros(()), torch.zeros(()), 0
        for loss_mask, ids in (
            (batch.loss_mask[row], batch.ids[row]),
            (batch.other_loss_mask[row], batch.other_ids[row]),
        ):
            seen = target.clone()
            seen[loss_mask] = mask_id
            seen[int(block[-1]) + 1 :] = mask_id
            assert torch.equal(ids[-length:], seen)
            found, places = logps(loop, prompt, seen), loss_mask.nonzero()[:, 0]
            if len(places):
                cross = cross - found[places, target[places]].mean()
            for place in places:
                if found[place].argmax() == target[place]:
                    sharp = (found[place] / 0.5).log_softmax(-1)
                    entropies, right = entropies - (sharp.exp() * sharp).sum(), right + 1
        literal = literal + (cross + 2.0 * entropies / max(right, 1)) / 4.0
    assert_same(loop, batch, literal)


@pytest.mark.parametrize("method", ["d_opsd", "ar_opsd"])
def test_distillation(project, method: str):
    """Forward KL to the base with the teacher's prompt and future, where it is surest."""
    loop, batch = collected(method)
    length = batch.candidates.shape[1]
    keep = [i for i in range(loop.policy.vocabulary) if i not in loop.policy.suppress_tokens]

    def row_of(side: str, row: int) -> Tensor:
        ids, real = (getattr(batch, f"{side}_{what}")[row] for what in ("ids", "mask"))
        logits = loop.policy.head(loop.policy.hidden(ids[real][None], None))[0, -length:]
        return logits[:, keep]

    literal = torch.zeros(())
    with as_base(loop):
        teachers = [row_of("teacher", row) for row in range(len(batch))]
    for row, teacher in enumerate(teachers):
        student = row_of("student", row).log_softmax(-1)
        places = sorted(
            batch.candidates[row].nonzero()[:, 0].tolist(),
            key=lambda place: -float(teacher[place].max()),
        )
        for place in places[: int(batch.k[row])]:
            p = teacher[place].log_softmax(-1)
            literal = literal + batch.weight[row] * (p.exp() * (p - student[place])).sum()
    assert_same(loop, batch, literal)
