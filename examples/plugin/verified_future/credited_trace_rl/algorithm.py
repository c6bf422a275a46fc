"""TraceRL (arXiv 2509.06949) whose advantages a teacher spreads over tokens (own, experimental)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dopsd.algorithms.trace_rl.algorithm import TraceRl
from verified_future.teacher import verified_future

if TYPE_CHECKING:
    from torch import Tensor

    from dopsd.algorithms.common.base import AlgorithmContext
    from dopsd.algorithms.trace_rl.algorithm import Collect
    from dopsd.algorithms.trace_rl.states import Plan
    from dopsd.models.policy import Policy
    from verified_future.credited_trace_rl.config import CreditedTraceRlConfig


def build(config: CreditedTraceRlConfig, context: AlgorithmContext) -> CreditedTraceRl:
    """Return the algorithm with its settings and the run's context."""
    return CreditedTraceRl("credited_trace_rl", config, context)


class CreditedTraceRl(TraceRl):
    """Give each predicted token an advantage of its own, by what the teacher thinks of it."""

    config: CreditedTraceRlConfig

    def prepared(self, policy: Policy, plan: Plan, collect: Collect) -> Plan:
        """Return the states with an advantage for each token."""
        c, batch = self.config, plan.batch
        key = "credit", self.context.seed, collect.number
        future = verified_future(policy, self.context, plan, collect, key, c.reveal_ratio)
        is_shown = future.shown.any(1, keepdim=True) & batch.loss_mask & ~future.shown
        collect.metrics.add("credited", int(is_shown.sum()), int(batch.loss_mask.sum()))
        length = batch.targets.shape[1]
        ids = torch.cat([batch.ids[:, :-length], future.completions], 1)
        with policy.reference():
            teacher = self.logps(policy, batch.with_tensors(ids=ids).to(policy.device))
        gap = (teacher.cpu() - batch.old_logps) * is_shown
        weight = credit_weight(c, self.context.made.updates, self.context.updates)
        advantage = credited(batch.advantage, gap, weight, c.credit_range)
        return plan.with_batch(batch.with_tensors(advantage=advantage))


def credit_weight(config: CreditedTraceRlConfig, update: int, updates: int) -> float:
    """Return l: `credit`, or with `credit_decay` what is left of it at this collect.

    Args:
        config: the settings.
        update: updates of the run before the collect.
        updates: updates of the run.
    """
    done = update / updates if config.credit_decay else 0.0
    return config.credit * max(0.0, 1.0 - done)


def credited(advantage: Tensor, gap: Tensor, weight: float, width: float) -> Tensor:
    """Return A' = A (1 - l + l w) with w = clip(exp(sign(A) gap), 1 - e, 1 + e).

    Args:
        advantage: A [B], of the rollouts.
        gap: [B, G], ln q(y) - ln p_old(y) of the teacher q; 0 where it is shown nothing.
        weight: l.
        width: e.

    Returns:
        [B, G].
    """
    whole = advantage[:, None]
    factor = (whole.sign() * gap).exp().clamp(1 - width, 1 + width)
    return whole * torch.where(gap == 0, 1.0, 1 - weight + weight * factor)
