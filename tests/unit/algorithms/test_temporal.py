"""Later states of a rollout teach its earlier ones: which, by hand; what the sampler keeps."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from conftest import ROOT
from fakes import EOS
from test_literal import as_base, collected, graded, gradients, logps, moved

from dopsd.algorithms.common.groups import Rewarded
from dopsd.algorithms.registry import variants_of
from dopsd.algorithms.temporal.algorithm import Temporal
from dopsd.algorithms.temporal.config import TemporalConfig
from dopsd.algorithms.temporal.targets import targets, teachers_of
from dopsd.algorithms.trace_rl.states import Steps, group_steps
from dopsd.core.tensors import first_index
from dopsd.core.types import Rollout
from dopsd.models.config import ModelConfig
from dopsd.models.llm_policy import load_policy
from dopsd.rollout.config import Decoding
from dopsd.rollout.fast_dllm import denoise_approximately
from dopsd.rollout.likeliest import LEAST, coarse, likeliest
from dopsd.rollout.sampler import GenerationRequest, denoise
from dopsd.training.trainer import Trainer

# states before steps 0, 2, 3; position 3 ends the text, and 4 is padding
REVEALED = torch.tensor([2, 0, 3, 3, 0])
COUNTED = torch.tensor([True, True, True, True, False])


def steps_of() -> Steps:
    ids = torch.tensor([1, 2, 3, EOS, EOS])
    return group_steps(Rollout("p", 0, torch.tensor([7]), ids, REVEALED), COUNTED, 1)


@pytest.mark.parametrize(
    ("changes", "state", "first", "last"),
    [
        ({"target": "commit"}, 0, [1, 0, 2, 2], [1, 0, 2, 2]),
        ({"target": "snapshot", "gap": 1}, 0, [1, 0, 1, 1], [1, 0, 1, 1]),
        ({"target": "snapshot", "gap": 5}, 0, [1, 0, 2, 2], [1, 0, 2, 2]),
        ({"target": "all_future"}, 0, [1, 0, 1, 1], [1, 0, 2, 2]),
        ({"target": "all_future"}, 2, [1, 0, 2, 2], [1, 0, 2, 2]),  # nothing later: itself
    ],
)
def test_which_states_teach_a_position(changes: dict, state: int, first: list, last: list):
    steps = steps_of()
    assert steps.first.tolist() == [0, 2, 3]
    found = teachers_of(state, steps, TemporalConfig(**changes))
    assert [bound[:4].tolist() for bound in found] == [first, last]


def test_a_distribution_is_kept_as_its_likeliest_tokens_and_the_rest():
    logits = torch.tensor([[0.1, 0.6, 0.3]]).log()
    ids, logps_kept = likeliest(logits, 2)
    assert ids.tolist() == [[1, 2]]
    assert logps_kept.exp()[0].tolist() == pytest.approx([0.6, 0.3, 0.1])
    whole = likeliest(logits, 9)[1]  # covers the vocabulary: nothing is left
    assert whole[0].tolist() == pytest.approx(
        [math.log(p) for p in (0.6, 0.3, 0.1)] + [LEAST], 1e-3
    )
    logits = torch.tensor([[0.5, -torch.inf, 0.1]], requires_grad=True)
    (
        coarse(logits, torch.tensor([[0, 1, 2]])) * torch.tensor([1.0, 2.0, 3.0, 4.0])
    ).sum().backward()
    assert torch.isfinite(logits.grad[0, [0, 2]]).all()


REQUESTS = [
    GenerationRequest("a", 0, torch.tensor([12, 13, 14]), 5),
    GenerationRequest("b", 0, torch.tensor([15, 16]), 6),
]


@pytest.mark.parametrize("base", ["sudoku", "sudoku_blocks"])
@pytest.mark.parametrize("threshold", [None, 0.2])
def test_what_the_sampler_keeps_is_what_a_forward_of_each_state_finds(base: str, threshold):
    """With all tokens kept, one rollout at a time: forwards of other shapes round in other ways."""
    policy = load_policy(ModelConfig(path=str(ROOT / "base" / base)), None, 0)
    policy.core.double()  # in float32 some processors round shapes apart by more than the bound
    decoding = Decoding(24, 8, 12, 0.9, top_k=policy.vocabulary, threshold=threshold)
    sample = denoise if threshold is None else denoise_approximately
    narrow = sample(policy, REQUESTS, replace(decoding, top_k=3))
    everywhere = torch.ones(24, dtype=torch.bool)
    for request, other in zip(REQUESTS, narrow, strict=True):
        (rollout,) = sample(policy, [request], decoding)
        steps = group_steps(rollout, everywhere, 1)
        config = TemporalConfig(top_k=policy.vocabulary)
        states = rollout.completion_ids.masked_fill(steps.masked, policy.mask_id)
        texts = torch.cat([rollout.prompt_ids.expand(len(states), -1), states], 1)
        ((ids, found),) = targets(policy, texts, steps, [(0, everywhere)], config, 1)
        sampled, forward = (
            torch.zeros(24, policy.vocabulary).scatter(1, tokens, logs[:, :-1].exp())
            for tokens, logs in ((rollout.top_ids, rollout.top_logps), (ids, found))
        )
        assert (sampled - forward).abs().max() <= 1e-6
        assert torch.equal(other.completion_ids, rollout.completion_ids)
        assert torch.equal(other.top_ids, rollout.top_ids[:, :3])
        assert other.top_logps.shape == (24, 4)


ALL = {"states": 0, "iterations": 2, "weight": "none", "group_size": 2, "top_k": 106}


def jsd(p: torch.Tensor, q: torch.Tensor, beta: float = 0.5) -> torch.Tensor:
    m = (1 - beta) * p + beta * q
    return beta * (q * (q / m).log()).sum(-1) + (1 - beta) * (p * (p / m).log()).sum(-1)


def kl(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return (q * (q / p).log()).sum(-1)


def reverse_kl(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return kl(q, p)


def bounded_reverse_kl(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    value = kl(q, p)
    return value * min(1.0, 0.01 / value.item()) if value > 0 else value


def jsd_of_three(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Of the target's three likeliest tokens, and all others as one."""
    top = q.topk(3).indices
    p, q = (torch.cat([d[top], d.index_fill(0, top, 0.0).sum()[None]]) for d in (p, q))
    return jsd(p, q)


@pytest.fixture
def doubles(monkeypatch: pytest.MonkeyPatch):
    """All of it in float64, so that a difference is an error and no rounding."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def seen(loop: Trainer, rollout: Rollout, masked: torch.Tensor) -> torch.Tensor:
    """Probabilities of the tokens that can be sampled, where these tokens are masked."""
    policy = loop.policy
    ids = rollout.completion_ids.masked_fill(masked, policy.mask_id)
    allowed = [i for i in range(policy.vocabulary) if i not in policy.suppress_tokens]
    return logps(loop, rollout.prompt_ids, ids)[:, allowed].log_softmax(-1).exp()


@torch.no_grad()
def teachers(loop: Trainer, item: Rewarded) -> dict[int, torch.Tensor]:
    """What the teacher says in each state; of a finished answer, where each token is masked."""
    config, at = loop.algorithm.config, item.rollout.revealed_at
    masked = {step: at >= step for step in at.unique().tolist()}
    if config.target == "finished":
        masked = {place: torch.arange(len(at)) == place for place in range(len(at))}
    with as_base(loop) if config.teacher == "base" else nullcontext():
        return {key: seen(loop, item.rollout, places) for key, places in masked.items()}


@pytest.mark.parametrize(
    ("changes", "divergence"),
    [
        ({}, jsd),
        ({"target": "snapshot", "gap": 2, "divergence": "forward_kl", "teacher": "base"}, kl),
        ({"target": "all_future", "divergence": "forward_kl", "teacher": "base"}, kl),
        ({"target": "commit", "teacher": "base"}, jsd),
        ({"target": "finished", "divergence": "reverse_kl", "teacher": "base"}, reverse_kl),
        ({"target": "finished", "iterations": 1, "positions": "committed"}, jsd),
        ({"divergence": "reverse_kl", "clip": 0.01}, bounded_reverse_kl),
        ({"top_k": 3}, jsd_of_three),
        ({"sampling__threshold": 0.3}, jsd),
    ],
)
def test_the_loss_by_hand(project, doubles, changes: dict, divergence):
    """State by state, each forward alone: the sum over masked tokens, 1/T, 1/N."""
    kept: list[Rewarded] = []
    scale = Temporal.scale

    def remember(self, policy, item):
        kept.append(item)
        return scale(self, policy, item)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Temporal, "scale", remember)
        loop = moved("temporal", **ALL | changes)
        loop.policy.core.double()
        while not loop.waiting:
            loop.collect()
    batch = loop.waiting[0][0]
    config, policy = loop.algorithm.config, loop.policy
    total = torch.zeros(())
    for item, teacher in zip(kept, [teachers(loop, item) for item in kept], strict=True):
        rollout = item.rollout
        end = first_index(rollout.completion_ids, policy.eos_id)
        counted = torch.arange(40) <= end
        times = sorted({int(t) for t in rollout.revealed_at[counted]})
        for n, t in enumerate(times):
            student = seen(loop, rollout, rollout.revealed_at >= t)
            for place in range(min(end + 1, 40)):
                own = times.index(int(rollout.revealed_at[place]))
                if own < n or (config.positions == "committed" and own > n):
                    continue
                states = {"commit": [own], "snapshot": [min(n + config.gap, own)]}
                later = states.get(config.target, range(min(n + 1, own), own + 1))
                keys = [place] if config.target == "finished" else [times[i] for i in later]
                target = torch.stack([teacher[key][place] for key in keys]).mean(0)
                total = total + divergence(student[place], target) / len(times) / 2
    found = loop.algorithm.loss(policy, batch)
    assert found.total.item() == pytest.approx(total.item(), rel=1e-6) and total > 0.01
    ours, theirs = (gradients(loop, loss) for loss in (found.total, total))
    gap = sum((ours[name] - theirs[name]).square().sum() for name in ours).sqrt()
    assert gap <= 1e-6 * sum(value.square().sum() for value in theirs.values()).sqrt()


def test_a_token_at_its_own_commit_teaches_nothing_at_first(project):
    loop, batch = collected("temporal", **ALL | {"positions": "committed"})
    found = loop.algorithm.loss(loop.policy, batch)
    assert abs(found.total.item()) <= 1e-5
    assert found.metrics.means()["agreement"] == 1.0
    with pytest.raises(ValueError, match="teaches nothing; set iterations above 1"):
        TemporalConfig(positions="committed", iterations=1, target="snapshot")


def test_one_drawn_state_is_all_of_them_on_average(project):
    many = moved("temporal", **ALL | {"iterations": 1})
    one = moved("temporal", **ALL | {"iterations": 400, "states": 1})
    losses = []
    for loop in (many, one):
        loop.collect()
        means = [loop.algorithm.loss(loop.policy, b).total.item() for (b,) in loop.waiting]
        losses.append(sum(means) / len(means))
    assert losses[1] == pytest.approx(losses[0], rel=0.05)


def test_rollouts_weigh_what_they_earn_and_less_if_they_are_long(project):
    loop = moved("temporal", length_target=4, weight="reward")
    ids = torch.full((8,), 3)
    ids[6] = loop.policy.eos_id
    item = Rewarded(Rollout("p", 0, ids[:1], ids, ids), 0.5, 0.0)
    assert loop.algorithm.scale(loop.policy, item) == pytest.approx(0.5 * (1 - 2 / 4))
    ids[3] = loop.policy.eos_id
    assert loop.algorithm.scale(loop.policy, item) == 0.5
    assert loop.algorithm.scale(loop.policy, replace(item, reward=-0.9)) == 0.0


def test_what_the_published_code_of_dopsd_trains_leaves_wrong_rollouts_out(project, monkeypatch):
    graded(monkeypatch, [1.0, 0.4, 0.0, 1.0])  # by the task's own reward, 0.4 would have weight
    settings = variants_of("temporal")["dOPSD-finished"].settings
    loop, batch = collected("temporal", **settings, states=1, iterations=1, group_size=4)
    problems = len(loop.order.of(0))
    assert len(batch) == 2 * problems and batch.scale.tolist() == [1.0] * len(batch)
    assert batch.weight.tolist() == [1 / 4] * len(batch)  # of all rollouts of a problem
