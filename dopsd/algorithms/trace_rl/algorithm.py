"""TraceRL: policy gradient on the states that the sampler went through.

arXiv 2509.06949; the defaults are those of its published code for LLaDA. With other settings it is
CJ-GRPO or RLDF.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from dopsd.algorithms.common.base import AlgorithmContext, Collected, LossOutput
from dopsd.algorithms.common.groups import Rewarded, RewardedGroups, group_collector
from dopsd.algorithms.common.losses import clipped_gain, kl_estimate, metric_sums
from dopsd.algorithms.common.views import Views, view_logps
from dopsd.algorithms.trace_rl.states import Plan, Trace, most_surprising, plan_states
from dopsd.core.metrics import MetricSums
from dopsd.core.rng import key_from
from dopsd.core.types import Problem
from dopsd.rollout.collector import RolloutStats

if TYPE_CHECKING:
    from dopsd.algorithms.trace_rl.config import TraceRlConfig
    from dopsd.models.policy import Policy


@dataclass(frozen=True)
class Collect:
    """The rollouts of a collect that are trained on."""

    rewarded: Sequence[Rewarded]  # the rollouts, group by group
    problems: Sequence[Problem]  # this rank's problems
    number: int  # that of the collect
    metrics: MetricSums  # metrics of the collect, to add to


def build(config: TraceRlConfig, context: AlgorithmContext) -> TraceRl:
    """Return the algorithm with its settings and the run's context."""
    return TraceRl("trace_rl", config, context)


class TraceRl:
    """Compare rewards within groups, and learn from the states of every trajectory.

    A subclass may override `prepared` and `loss`, as examples/plugin does.

    Args:
        method: name of the method, part of its random keys.
    """

    normalize_by_all_prompts = False  # weights count states or tokens

    def __init__(self, method: str, config: TraceRlConfig, context: AlgorithmContext) -> None:
        self.method, self.config, self.context = method, config, context
        sampling = config.sampling_of(context.sampling)
        self.collector = group_collector(config, replace(context, sampling=sampling))
        self.groups = RewardedGroups(config, self.collector, config.baseline)

    def collect(self, policy: Policy, problems: list[Problem], collect: int) -> Collected:
        """Sample and reward groups, and return the states of those that have advantages."""
        groups, stats = self.groups.sample(policy, problems, collect)
        kept = [group for group in groups if self._is_kept(group)]
        stats.metrics.add("kept_groups", len(kept), len(groups))
        rewarded = [item for group in kept for item in group]
        stats = RolloutStats(stats.counters | {"trajectories": len(rewarded)}, stats.metrics)
        if not rewarded:
            return Collected([], stats)
        plan = self._plan(policy, rewarded, collect)
        plan = self.prepared(policy, plan, Collect(rewarded, problems, collect, stats.metrics))
        return Collected(self._updates(policy, plan, rewarded), stats)

    def prepared(self, policy: Policy, plan: Plan, collect: Collect) -> Plan:
        """Return the states with what a subclass adds to them."""
        return plan

    def _is_kept(self, group: Sequence[Rewarded]) -> bool:
        rewards, most = [item.reward for item in group], self.config.most_mean_reward
        mean = sum(rewards) / len(rewards)
        is_between = self.config.least_mean_reward <= mean <= (math.inf if most is None else most)
        return is_between and max(rewards) > min(rewards)

    def _updates(
        self, policy: Policy, plan: Plan, rewarded: Sequence[Rewarded]
    ) -> list[list[Trace]]:
        """Return the batches of every update."""
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

    def _plan(self, policy: Policy, rewarded: Sequence[Rewarded], collect: int) -> Plan:
        """Return the states to train on, with log-probabilities under the policy that sampled."""
        c = self.config
        plan = plan_states(policy, rewarded, c.shrink, c.confident is not None)
        old_logps = self.logps(policy, plan.batch.to(policy.device)).cpu()
        loss_mask = plan.batch.loss_mask
        if c.confident is not None:
            loss_mask = plan.committed | (loss_mask & (old_logps.exp() >= c.confident))
        changed = {"old_logps": old_logps * loss_mask, "loss_mask": loss_mask}
        plan = plan.with_batch(plan.batch.with_tensors(**changed))
        if not c.states:
            return plan
        rollouts = [item.rollout for item in rewarded]
        key = self.method, self.collector.seed, collect
        keys = torch.tensor([key_from(*key, r.problem_id, r.attempt) for r in rollouts])
        return most_surprising(plan, keys, c.states, c.surprise_temperature)

    def _with_ref(self, policy: Policy, batch: Trace) -> Trace:
        """Return the batch on the policy's device, with the other side of the KL penalty."""
        batch = batch.to(policy.device)
        if self.config.kl_to == "old" or not self.config.kl_weight:
            return batch.with_tensors(ref_logps=batch.old_logps)
        with policy.reference():
            return batch.with_tensors(ref_logps=self.logps(policy, batch))

    def logps(self, policy: Policy, batch: Trace) -> Tensor:
        """Return ln p of the predicted tokens [B, G], 0 elsewhere."""
        parts = batch.split(self.collector.sampling.batch_size)
        with torch.no_grad():
            return torch.cat([_state_logps(policy, part) for part in parts])

    def loss(self, policy: Policy, batch: Any) -> LossOutput:  # noqa: ANN401  # its own kind of Batch
        """Return the clipped policy-gradient loss with a KL penalty, summed over states."""
        logps = _state_logps(policy, batch)  # [B, G]
        losses, totals = self.gains(logps, batch)
        sums = metric_sums(totals, batch.on_host("loss_mask").sum().item())
        return LossOutput((losses * batch.weight).sum(), sums)

    def gains(self, logps: Tensor, batch: Trace) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss [B] of each state, and metrics as totals over predicted tokens."""
        losses, kl, clipped = state_losses(logps, batch, self.config)
        figures = {"kl": kl, "clip_ratio": clipped * batch.loss_mask, "logp": logps}
        return losses, {name: value.sum() for name, value in figures.items()}


def _state_logps(policy: Policy, batch: Trace) -> Tensor:
    loss_mask = batch.on_host("loss_mask")[:, None]
    views = Views(batch.ids[:, None], batch.attention_mask(), batch.targets, loss_mask)
    return view_logps(policy, views, len(batch))[:, 0]


class StateLosses(NamedTuple):
    """The loss of each state, and what its predicted tokens add up to."""

    losses: Tensor  # [B]
    kl: Tensor  # [B, G], estimated KL in nats, 0 where nothing is predicted
    clipped: Tensor  # [B, G], 1 where the clip lowers the gain


def state_losses(logps: Tensor, batch: Trace, config: TraceRlConfig) -> StateLosses:
    """Return -mean min(r A, clip(r, 1-e, 1+e) A) + b KL over the predicted tokens of each state.

    r = exp(logp - old), KL is the sum or the mean of exp(ref - logp) - (ref - logp) - 1.

    Args:
        logps: [B, G], ln p of the targets, 0 where nothing is predicted.
        batch: the states; their earlier log-probabilities are 0 there too.
    """
    ratio, advantage = (logps - batch.old_logps).exp(), batch.advantage.reshape(len(logps), -1)
    gain = clipped_gain(ratio, advantage, 1 - config.clip_range, 1 + config.clip_range)
    kl, count = kl_estimate(logps, batch.ref_logps), batch.loss_mask.sum(1)
    penalty = kl.sum(1) if config.kl_reduction == "sum" else kl.sum(1) / count
    losses = config.kl_weight * penalty - (gain * batch.loss_mask).sum(1) / count
    return StateLosses(losses, kl, (gain < ratio * advantage).float())
