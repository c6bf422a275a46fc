"""SPG: sandwiched policy gradient, with a bound from below for right and from above for wrong.

SPG (arXiv 2510.09541); the defaults are those of the published code. There is no ratio, so neither
an old policy nor a reference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dopsd.algorithms.common.base import AlgorithmContext, LossOutput
from dopsd.algorithms.common.batch import Batch
from dopsd.algorithms.common.groups import GroupMethod, Rewarded, group_collector
from dopsd.algorithms.common.losses import metric_sums
from dopsd.algorithms.common.views import (
    Completions,
    Views,
    random_subset,
    rollout_keys,
    view_logps,
)
from dopsd.core.errors import Code
from dopsd.core.rng import fold_in, uniform

if TYPE_CHECKING:
    from dopsd.algorithms.spg.config import SpgConfig
    from dopsd.models.policy import Policy


def build(config: SpgConfig, context: AlgorithmContext) -> Spg:
    """Return the algorithm with its settings and the run's context."""
    s = context.sampling
    if config.mask == "block" and config.draws > s.gen_length // s.block_length:
        raise Code.CONTRADICTION.error(
            f"method.spg.draws: {config.draws} are more than the {s.gen_length // s.block_length}"
            " blocks of an answer; lower draws, or set mask: random"
        )
    return Spg(config, group_collector(config, context), context.sequences_at_once)


class Spg(GroupMethod):
    """Raise a lower bound of better completions, and lower an upper bound of worse ones."""

    config: SpgConfig
    normalize_by_all_prompts = False  # weights are token counts; advantages are in the batch

    def taught(self, group: list[Rewarded]) -> list[Rewarded]:
        """Leave out completions without an advantage; with `negative: none` the worse ones too."""
        has_negative = self.config.negative != "none"
        return [i for i in group if i.advantage > 0 or (i.advantage < 0 and has_negative)]

    def batch(
        self, policy: Policy, taught: Sequence[Rewarded], collect: int, iteration: int
    ) -> BoundedCompletions:
        """Draw the masks of an update, and mask prompt tokens with probability `prompt_mask`."""
        rollouts = [item.rollout for item in taught]
        texts, seed = Completions.of(policy, rollouts), self.collector.seed
        keys = rollout_keys(rollouts, "spg", seed, collect, iteration)
        of_draws = fold_in(fold_in(keys, -1)[:, None], torch.arange(self.config.draws))  # [B, N]
        hidden = self._hidden(keys, of_draws, texts.completion_mask)
        prompts = texts.masked_prompts(of_draws, self.config.prompt_mask, policy.mask_id)
        completions = torch.where(hidden, policy.mask_id, texts.targets[:, None])
        return BoundedCompletions(
            torch.cat([prompts, completions], -1),
            texts.mask,
            texts.targets,
            hidden & texts.completion_mask[:, None],
            torch.tensor([item.advantage for item in taught]),
            texts.completion_mask.sum(1).float(),
        ).to(policy.device)

    def _hidden(self, keys: Tensor, of_draws: Tensor, completion_mask: Tensor) -> Tensor:
        """Return where tokens of completions are hidden, [B, N, G]."""
        c, length = self.config, completion_mask.shape[1]
        block_length = self.collector.sampling.block_length
        if c.mask == "random":
            return completion_masks(
                of_draws, completion_mask, torch.zeros_like(of_draws), length, 0.0
            )
        used = (completion_mask.sum(1) - 1) // block_length + 1
        chosen = chosen_blocks(keys, used, length // block_length, c.draws)
        share = c.prompt_mask if c.mask_earlier else 0.0
        return completion_masks(of_draws, completion_mask, chosen, block_length, share)

    def loss(self, policy: Policy, batch: BoundedCompletions) -> LossOutput:
        """Return -sum L A lp over completions of L tokens; lp is a bound, in nats per token."""
        views = Views(batch.ids, batch.attention_mask(), batch.targets, batch.on_host("loss_mask"))
        logps, c = view_logps(policy, views, self.max_sequences), self.config
        lower = lower_bound(logps, batch.loss_mask)
        upper = upper_bound(logps, batch.loss_mask, batch.weight, c.eubo_beta)
        share = {"mix": c.mix_weight, "eubo": 1.0, "elbo": 0.0, "none": 0.0}[c.negative]
        bounds = torch.where(batch.advantage > 0, lower, share * upper + (1 - share) * lower)
        sums = metric_sums({"elbo": lower.sum(), "eubo": upper.sum()}, len(batch))
        return LossOutput(-(batch.weight * batch.advantage * bounds).sum(), sums)


@dataclass(frozen=True)
class BoundedCompletions(Batch):
    """Completions under N masks each, as both bounds of their likelihood are estimated."""

    ids: Tensor  # [B, N, P+G]
    mask: Tensor  # [B, P+G], False on padding
    targets: Tensor  # [B, G]
    loss_mask: Tensor  # [B, N, G], True at masked tokens up to the first end of text
    advantage: Tensor  # [B], not 0
    weight: Tensor  # [B], tokens up to the first end of text

    @property
    def forwards(self) -> int:
        """Sequences in the forward passes of one completion: N."""
        return self.ids.shape[1]


def lower_bound(logps: Tensor, loss_mask: Tensor) -> Tensor:
    """Return the ELBO [B]: the mean over masks of the mean ln p at masked tokens, in nats.

    Args:
        loss_mask: [B, N, G], True at masked tokens that count.
    """
    return ((logps * loss_mask).sum(-1) / loss_mask.sum(-1)).mean(-1)


def upper_bound(logps: Tensor, loss_mask: Tensor, length: Tensor, beta: float) -> Tensor:
    """Return the EUBO: the mean over tokens of ln(mean over masks of p^b 1[masked] / t) / b.

    Tokens that no mask hides are left out.

    Args:
        logps: [B, N, G], in nats.
        loss_mask: [B, N, G], True at masked tokens that count.
        length: [B], tokens that count; t is the share of them that a mask hides.
        beta: b.

    Returns:
        [B], in nats per token.
    """
    share = loss_mask.sum(-1) / length[:, None]  # t, [B, N]
    terms = (beta * logps - share.log()[..., None]).masked_fill(~loss_mask, -torch.inf)
    is_seen = loss_mask.any(1)  # [B, G]
    # no row of -inf alone: its gradient is no number
    terms = terms.masked_fill(~is_seen[:, None], 0.0).logsumexp(1) - math.log(terms.shape[1])
    return (terms * is_seen).sum(-1) / is_seen.sum(-1) / beta


def chosen_blocks(keys: Tensor, used: Tensor, blocks: int, draws: int) -> Tensor:
    """Choose the block of each mask: the first of a random order of all, modulo those in use.

    Args:
        keys: [B].
        used: [B], blocks that hold a token up to the first end of text.
        blocks: blocks of a completion, at least `draws`.
        draws: N.

    Returns:
        [B, N], each from 0 to `used` - 1.
    """
    order = uniform(fold_in(keys[:, None], torch.arange(blocks))).argsort(-1)
    return order[:, :draws] % used[:, None]


def completion_masks(
    keys: Tensor, completion_mask: Tensor, chosen: Tensor, block_length: int, share: float
) -> Tensor:
    """Mask n ~ U{1..tokens} random tokens of the chosen block, and all after the block.

    Args:
        keys: [B, N].
        completion_mask: [B, G], True up to the first end of text; masked after it.
        chosen: [B, N], the block.
        block_length: tokens of a block; G: any part of the completion.
        share: probability that a token of an earlier block is masked.

    Returns:
        [B, N, G], True where a token is hidden.
    """
    length, counted = completion_mask.shape[1], completion_mask[:, None]
    draw = uniform(fold_in(keys[..., None], torch.arange(length + 1)))  # [B, N, G+1]
    blocks, chosen = torch.arange(length) // block_length, chosen[..., None]
    in_block = random_subset(draw, (blocks == chosen) & counted)
    earlier = (blocks < chosen) & (draw[..., :-1] < share)
    return in_block | earlier | (blocks > chosen) | ~counted
