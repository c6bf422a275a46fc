"""The states of a trajectory that are trained on, and the tokens predicted from each.

Pure functions of rollouts and keys (TraceRL, arXiv 2509.06949, for models with full attention).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dopsd.algorithms.common.batch import Batch
from dopsd.algorithms.common.views import Completions
from dopsd.core.rng import fold_in, uniform

if TYPE_CHECKING:
    from dopsd.algorithms.common.groups import Rewarded
    from dopsd.core.types import Rollout
    from dopsd.models.policy import Policy


@dataclass(frozen=True)
class Trace(Batch):
    """Recorded states of rollouts, with the tokens to predict and their log-probabilities."""

    ids: Tensor  # [B, P+G], as the sampler saw them
    mask: Tensor  # [B, P+G], False on padding
    targets: Tensor  # [B, G], the whole completion
    loss_mask: Tensor  # [B, G], True where a token is predicted
    advantage: Tensor  # [B], of the rollout, or [B, G], of its tokens
    old_logps: Tensor  # [B, G], of the targets, under the policy that sampled them
    ref_logps: Tensor  # [B, G], under the policy of the KL penalty
    weight: Tensor  # [B], 1, or the predicted tokens


@dataclass(frozen=True)
class Steps:
    """What the states of a trajectory mask and commit."""

    first: Tensor  # [S], first denoising step of the group of each state
    masked: Tensor  # [S, G], masked in the state
    committed: Tensor  # [S, G], counted tokens that the group of steps committed


def group_steps(rollout: Rollout, counted: Tensor, shrink: int) -> Steps:
    """Group the steps of a trajectory, and return the state before each group.

    Groups without a counted token are left out.

    Args:
        counted: [G], False on padding after the end of text.
        shrink: steps of a group; the last one may have fewer.
    """
    first = rollout.revealed_at.unique()[::shrink]  # sorted
    masked = rollout.revealed_at >= first[:, None]  # [S, G]
    later = torch.cat([masked[1:], torch.zeros_like(masked[:1])])
    committed = masked & ~later & counted
    rows = committed.any(1)
    return Steps(first[rows], masked[rows], committed[rows])


def draw_states(surprise: Tensor, keys: Tensor, temperature: float) -> Tensor:
    """Order states as draws without replacement from softmax(surprise / temperature) do.

    Args:
        surprise: [S], mean of -ln p over the tokens that each state's steps committed.
        keys: [S].

    Returns:
        [S], indices; the first n are n draws.
    """
    noise = -(-uniform(keys).log()).log()  # Gumbel
    return (surprise / temperature + noise).argsort(descending=True, stable=True)


@dataclass(frozen=True)
class Plan:
    """All states of some rollouts, in main memory."""

    batch: Trace  # [B]
    committed: Tensor  # [B, G]
    rollout: Tensor  # [B], index of the rollout
    first: Tensor  # [B], first denoising step of the group
    turn: Tensor  # [B], number of the state in its trajectory

    def with_batch(self, batch: Trace) -> Plan:
        """Return the plan with another batch of the same states."""
        return replace(self, batch=batch)

    def rows(self, indices: list[int]) -> Plan:
        """Return the plan of these states."""
        parts = (value[indices] for value in (self.committed, self.rollout, self.first, self.turn))
        return Plan(self.batch.rows(indices), *parts)


def plan_states(
    policy: Policy, rewarded: Sequence[Rewarded], shrink: int, predicts_all: bool
) -> Plan:
    """Return all states of the rollouts; their log-probabilities are still 0.

    Args:
        predicts_all: predict every counted masked token, not only those that the group committed.
    """
    rollouts = [item.rollout for item in rewarded]
    texts = Completions.of(policy, rollouts)
    steps = [
        group_steps(rollout, counted, shrink)
        for rollout, counted in zip(rollouts, texts.completion_mask, strict=True)
    ]
    sizes = torch.tensor([len(item.first) for item in steps])
    rows = torch.arange(len(rollouts)).repeat_interleave(sizes)  # [B]
    masked = torch.cat([item.masked for item in steps])
    committed = torch.cat([item.committed for item in steps])
    targets, none = texts.targets[rows], torch.zeros(masked.shape)
    batch = Trace(
        torch.cat([texts.prompts[rows], targets.masked_fill(masked, policy.mask_id)], 1),
        texts.mask[rows],
        targets,
        masked & texts.completion_mask[rows] if predicts_all else committed,
        torch.tensor([item.advantage for item in rewarded])[rows],
        none,
        none,
        torch.ones(len(rows)),
    )
    turns = [torch.arange(n) for n in sizes.tolist()]
    return Plan(batch, committed, rows, torch.cat([s.first for s in steps]), torch.cat(turns))


def most_surprising(plan: Plan, keys: Tensor, n: int, temperature: float) -> Plan:
    """Return a plan with n states of each rollout, drawn by surprise; all where there are fewer."""
    surprise = -(plan.batch.old_logps * plan.committed).sum(1) / plan.committed.sum(1)
    kept: list[int] = []
    for index in plan.rollout.unique():
        rows = (plan.rollout == index).nonzero()[:, 0]
        order = draw_states(surprise[rows], fold_in(keys[index], plan.first[rows]), temperature)
        kept += sorted(rows[order[:n]].tolist())
    return plan.rows(kept)
