"""TraceRL: policy gradient on the states that the sampler went through.

arXiv 2509.06949; the defaults are those of its published code for LLaDA. With other settings it is
CJ-GRPO or RLDF.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dopsd.algorithms.common.base import Collected, LossOutput
from dopsd.algorithms.common.groups import RewardedGroups, group_collector
from dopsd.algorithms.common.losses import metric_sums
from dopsd.algorithms.common.views import Views, view_logps
from dopsd.algorithms.trace_rl.loss import state_losses
from dopsd.algorithms.trace_rl.states import Trace, most_surprising, plan_states
from dopsd.core.rng import key_from
from dopsd.rollout.groups import RolloutStats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dopsd.algorithms.common.base import AlgorithmContext
    from dopsd.algorithms.common.groups import Rewarded
    from dopsd.algorithms.trace_rl.config import TraceRlConfig
    from dopsd.algorithms.trace_rl.states import Plan
    from dopsd.core.types import Problem
    from dopsd.models.policy import Policy
    from dopsd.rollout.collector import RolloutCollector


def build(config: TraceRlConfig, context: AlgorithmContext) -> TraceRl:
    """Return the algorithm with its settings and the run's context."""
    return TraceRl(config, group_collector(config, context))


class TraceRl:
    """Compare rewards within groups, and learn from the states of every trajectory."""

    normalize_by_all_prompts = False  # weights count states or tokens

    def __init__(self, config: TraceRlConfig, collector: RolloutCollector) -> None:
        self.config, self.collector = config, collector
        self.groups = RewardedGroups(config, collector, config.baseline)

    def collect(self, policy: Policy, problems: list[Problem], update: int) -> Collected:
        """Sample and reward groups, and return the states of those that have advantages."""
        groups, stats = self.groups.sample(policy, problems, update)
        kept = [group for group in groups if self._is_kept(group)]
        stats.metrics.add("kept_groups", len(kept), len(groups))
        rewarded = [item for group in kept for item in group]
        counters = stats.counters | {"trajectories": len(rewarded)}
        updates = self._updates(policy, rewarded, update) if rewarded else []
        return Collected(updates, RolloutStats(counters, stats.metrics))

    def _is_kept(self, group: Sequence[Rewarded]) -> bool:
        rewards, most = [item.reward for item in group], self.config.most_mean_reward
        mean = sum(rewards) / len(rewards)
        is_between = self.config.least_mean_reward <= mean <= (math.inf if most is None else most)
        return is_between and max(rewards) > min(rewards)

    def _updates(
        self, policy: Policy, rewarded: Sequence[Rewarded], update: int
    ) -> list[list[Trace]]:
        """Return the batches of every update."""
        plan = self._plan(policy, rewarded, update)
        batch, places = plan.batch, self._places(plan, rewarded)
        if self.config.reduction == "token":
            batch = batch.with_tensors(weight=batch.loss_mask.sum(1).float())
        numbers = range(self.config.updates_per_pass)
        parts = [(places == n).nonzero()[:, 0].tolist() for n in numbers]
        updates = [[self._with_ref(policy, batch.rows(rows))] if rows else [] for rows in parts]
        return updates * self.config.passes

    def _places(self, plan: Plan, rewarded: Sequence[Rewarded]) -> Tensor:
        """Return the update of each state [B]: consecutive states go to different ones.

        The rollouts of a group begin at different ones, as far apart as there are updates.
        """
        count = self.config.updates_per_pass
        stride = math.ceil(count / self.config.group_size)
        attempts = torch.tensor([item.rollout.attempt for item in rewarded])[plan.rollout]
        return (plan.turn + stride * attempts) % count

    def _plan(self, policy: Policy, rewarded: Sequence[Rewarded], update: int) -> Plan:
        """Return the states to train on, with log-probabilities under the policy that sampled."""
        c = self.config
        plan = plan_states(policy, rewarded, c.shrink, c.confident is not None)
        old_logps = self._logps(policy, plan.batch.to(policy.device)).cpu()
        loss_mask = plan.batch.loss_mask
        if c.confident is not None:
            loss_mask = plan.committed | (loss_mask & (old_logps.exp() >= c.confident))
        changed = {"old_logps": old_logps * loss_mask, "loss_mask": loss_mask}
        plan = plan.with_batch(plan.batch.with_tensors(**changed))
        if not c.states:
            return plan
        rollouts = [item.rollout for item in rewarded]
        key = "trace_rl", self.collector.seed, update
        keys = torch.tensor([key_from(*key, r.problem_id, r.attempt) for r in rollouts])
        return most_surprising(plan, keys, c.states, c.surprise_temperature)

    def _with_ref(self, policy: Policy, batch: Trace) -> Trace:
        """Return the batch on the policy's device, with the other side of the KL penalty."""
        batch = batch.to(policy.device)
        if self.config.kl_to == "old" or not self.config.kl_weight:
            return batch.with_tensors(ref_logps=batch.old_logps)
        with policy.reference():
            return batch.with_tensors(ref_logps=self._logps(policy, batch))

    def _logps(self, policy: Policy, batch: Trace) -> Tensor:
        """Return ln p of the predicted tokens [B, G], 0 elsewhere."""
        parts = batch.split(self.collector.sampling.batch_size)
        with torch.no_grad():
            return torch.cat([_state_logps(policy, part) for part in parts])

    def loss(self, policy: Policy, batch: Trace) -> LossOutput:
        """Return the clipped policy-gradient loss with a KL penalty, summed over states."""
        logps = _state_logps(policy, batch)  # [B, G]
        losses, kl, clipped = state_losses(logps, batch, self.config)
        figures = {"kl": kl, "clip_ratio": clipped * batch.loss_mask, "logp": logps}
        totals = {name: value.sum() for name, value in figures.items()}
        sums = metric_sums(totals, batch.on_host("loss_mask").sum().item())
        return LossOutput((losses * batch.weight).sum(), sums)


def _state_logps(policy: Policy, batch: Trace) -> Tensor:
    loss_mask = batch.on_host("loss_mask")[:, None]
    views = Views(batch.ids[:, None], batch.attention_mask(), batch.targets, loss_mask)
    return view_logps(policy, views, len(batch))[:, 0]
