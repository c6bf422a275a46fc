"""VRPO: preference optimisation on right and wrong rollouts, with a low-variance bound.

LLaDA 1.5 (arXiv 2505.19223), section 3; the defaults are its published settings, where there are
any.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from dopsd.algorithms.common.base import AlgorithmContext, Collected, LossOutput
from dopsd.algorithms.common.batch import PreferenceBatch
from dopsd.algorithms.common.losses import masked_cross_entropy, metric_sums
from dopsd.algorithms.common.views import random_subset
from dopsd.core.rng import fold_in, key_from, uniform
from dopsd.core.tensors import left_pad, through_first, true_positions
from dopsd.core.types import Problem, Rollout
from dopsd.rollout.collector import RolloutCollector, RolloutGroup, RolloutStats
from dopsd.rollout.config import CollectorConfig

if TYPE_CHECKING:
    from dopsd.algorithms.vrpo.config import VrpoConfig
    from dopsd.models.policy import Policy


def build(config: VrpoConfig, context: AlgorithmContext) -> Vrpo:
    """Return the algorithm with its settings and the run's context."""
    t, n = config.temperature, config.attempts
    collector_config = CollectorConfig(
        attempts=n, first_temperature=t, retry_temperature=t, keep="all"
    )
    return Vrpo(config, context.collector(collector_config), context.sequences_at_once)


class Vrpo:
    """Sample, pair the best with the worst rollout, and prefer the one to the other."""

    normalize_by_all_prompts = False

    def __init__(self, config: VrpoConfig, collector: RolloutCollector, max_sequences: int) -> None:
        self.config, self.collector, self.most = config, collector, max_sequences

    def collect(self, policy: Policy, problems: list[Problem], collect: int) -> Collected:
        """Return one update: a pair of rollouts for each problem that has one."""
        with policy.reference() if self.config.pairs == "initial" else nullcontext():
            groups = self.collector.sample(policy, problems, collect, stops=False)
        pairs = [pair for group in groups if (pair := paired(group, self.collector.task.graded))]
        stats = self.collector.summary(policy, [self.collector.scored(group) for group in groups])
        stats.metrics.add("paired", len(pairs), len(groups))
        if self.config.pairs == "initial":  # not a score of the policy in training
            stats.metrics["initial_first_attempt_score"] = stats.metrics.pop("first_attempt_score")
        updates = [[self._pairs(policy, pairs, collect)]] if pairs else []
        counters = stats.counters | {"trajectories": 2 * len(pairs)}
        return Collected(updates, RolloutStats(counters, stats.metrics))

    def _pairs(
        self, policy: Policy, pairs: Sequence[tuple[Rollout, Rollout]], collect: int
    ) -> PreferenceBatch:
        prompt, mask = left_pad([better.prompt_ids for better, _ in pairs], policy.eos_id)  # [B, P]
        targets = torch.stack(
            [torch.stack([r.completion_ids for r in pair]) for pair in pairs]
        )  # [B, 2, G]
        completion_mask = through_first(targets, policy.eos_id)
        length = completion_mask.sum(-1)  # [B, 2]
        seeds = [
            [key_from("vrpo", self.collector.seed, collect, r.problem_id, r.attempt) for r in pair]
            for pair in pairs
        ]
        key = torch.tensor(seeds)[:, :, None]  # [B, 2, 1]
        key = fold_in(key, torch.arange(self.config.draws))  # [B, 2, N]
        loss_mask, size = drawn(key, completion_mask), len(pairs)
        batch = PreferenceBatch(
            prompt, mask, targets, loss_mask, length, torch.zeros(size, 2), torch.ones(size)
        ).to(policy.device)
        with torch.no_grad(), policy.reference():
            batch_size = self.collector.sampling.batch_size
            bounds = torch.cat(
                [
                    likelihood_bound(policy, micro_batch, batch_size)
                    for micro_batch in batch.split(batch_size)
                ]
            )
        return batch.with_tensors(ref_bounds=bounds)

    def loss(self, policy: Policy, batch: PreferenceBatch) -> LossOutput:
        """Return the preference loss and a share of fine-tuning on the preferred completion."""
        bounds = likelihood_bound(policy, batch, self.most)  # [B, 2]
        preference_losses, margin = preference(bounds, batch.ref_bounds, self.config.beta)
        sft_losses = -bounds[:, 0] / batch.length[:, 0]
        totals = {"margin": margin.sum(), "preferred": (margin > 0).float().sum()}
        totals["cross_entropy"] = sft_losses.sum()
        sums = metric_sums(totals, len(batch))
        return LossOutput(
            ((preference_losses + self.config.sft_weight * sft_losses) * batch.weight).sum(), sums
        )


def paired(group: RolloutGroup, is_graded: bool) -> tuple[Rollout, Rollout] | None:
    """Return the best and the worst attempt, the latest and the earliest on ties.

    Returns:
        The pair; None if all scores are equal, or no attempt at a task without partial scores is
        correct.
    """
    scores = [score.score for score in group.scores]
    worst = min(range(len(scores)), key=lambda i: (scores[i], i))
    if scores[group.best] <= scores[worst] or not (is_graded or group.scores[group.best].correct):
        return None
    return group.rollouts[group.best], group.rollouts[worst]


def drawn(key: Tensor, completion_mask: Tensor) -> Tensor:
    """Draw l ~ U{1..L} of the completion's L tokens, without replacement, for every key.

    Args:
        key: [B, 2, N].
        completion_mask: [B, 2, G], True up to the end of text.

    Returns:
        [B, 2, N, G], True at the drawn tokens.
    """
    positions = torch.arange(completion_mask.shape[-1] + 1)
    draw = uniform(fold_in(key[..., None], positions))  # [B, 2, N, G+1]
    return random_subset(draw, completion_mask[:, :, None])


def likelihood_bound(policy: Policy, batch: PreferenceBatch, max_sequences: int) -> Tensor:
    """Estimate the lower bound of ln p(completion | prompt) for both completions of every pair.

    It is the mean over the N masks of L / l times the sum of ln p at the l masked tokens (LLaDA,
    Eq. 6; LLaDA 1.5, section 3.1).

    Args:
        max_sequences: sequences of one pair in memory at once (two at least); the other masks are
            recomputed in the backward pass. The number of forwards does not depend on B.

    Returns:
        [B, 2], in nats.
    """
    _, sides, draws, _ = batch.loss_mask.shape
    masks_at_once = max(1, max_sequences // sides)
    starts = range(0, draws, masks_at_once)
    groups = [_Masks.of(batch, slice(start, start + masks_at_once)) for start in starts]
    if len(groups) == 1:
        return _weighted(policy, batch, groups[0]).sum(-1) / draws
    sums = [
        checkpoint(_weighted, policy, batch, masks, use_reentrant=False).sum(-1) for masks in groups
    ]
    return torch.stack(sums).sum(0) / draws


@dataclass(frozen=True)
class _Masks:
    """Some of the masks of every completion, and the masked positions."""

    loss_mask: Tensor  # [B, 2, n, G]
    rows: Tensor  # [masked], of the B * 2 * n rows
    columns: Tensor  # [masked]

    @classmethod
    def of(cls, batch: PreferenceBatch, masks: slice) -> _Masks:
        """Return these masks of a batch."""
        on_host = batch.on_host("loss_mask")[:, :, masks].flatten(0, 2)
        loss_mask = batch.loss_mask[:, :, masks]
        return cls(loss_mask, *true_positions(on_host, loss_mask.device))


def _weighted(policy: Policy, batch: PreferenceBatch, masks: _Masks) -> Tensor:
    """Return L / l times the sum of ln p at the masked tokens: [B, 2, n]."""
    size, sides, draws, length = masks.loss_mask.shape
    targets = batch.targets[:, :, None].expand(-1, -1, draws, -1).reshape(-1, length)  # [B*2*n, G]
    weight = batch.length[:, :, None] / masks.loss_mask.sum(-1)  # [B, 2, n]
    loss_mask = masks.loss_mask.reshape(-1, length)
    prompt = batch.prompt.repeat_interleave(sides * draws, 0)
    after_end = (
        torch.arange(length, device=targets.device)
        >= batch.length.flatten().repeat_interleave(draws)[:, None]
    )
    # tokens after the end are masked: they would reveal where the text ends
    ids = torch.cat([prompt, torch.where(loss_mask | after_end, policy.mask_id, targets)], 1)
    mask = batch.attention_mask()
    if mask is not None:
        mask = torch.cat([mask.repeat_interleave(sides * draws, 0), torch.ones_like(loss_mask)], 1)
    hidden = policy.masked_hidden(ids, mask, targets)
    logits = policy.head(hidden[masks.rows, masks.columns])
    logps = -masked_cross_entropy(logits, targets[masks.rows, masks.columns])  # [masked]
    sums = torch.zeros(len(targets), dtype=logps.dtype, device=logps.device).index_add(
        0, masks.rows, logps
    )
    return sums.view(size, sides, draws) * weight


def preference(bounds: Tensor, ref_bounds: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """Return -ln sigma(margin) and margin = beta ((B - B_ref)(chosen) - (B - B_ref)(rejected)).

    Args:
        bounds: [B, 2], likelihood bounds in nats, of the preferred and the rejected completion.
        ref_bounds: [B, 2], the same under the initial policy.

    Returns:
        The loss [B] and the margin [B].
    """
    gain = bounds - ref_bounds
    margin = beta * (gain[:, 0] - gain[:, 1])
    return -torch.nn.functional.logsigmoid(margin), margin
