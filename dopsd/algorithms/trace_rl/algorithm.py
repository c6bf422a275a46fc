"""TraceRL: policy gradient on the states that the sampler went through.

arXiv 2509.06949; the defaults are those of its published code for LLaDA. With other settings it is
CJ-GRPO or RLDF. The credit of a teacher for each token is our own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dopsd.algorithms.common.trace_gradient import TraceGradient
from dopsd.algorithms.common.trace_teacher import verified_future
from dopsd.algorithms.trace_rl.credit import credit_weight, credited

if TYPE_CHECKING:
    from dopsd.algorithms.common.base import AlgorithmContext
    from dopsd.algorithms.common.trace_gradient import Collect
    from dopsd.algorithms.common.trace_states import Plan
    from dopsd.algorithms.trace_rl.config import TraceRlConfig
    from dopsd.models.policy import Policy


def build(config: TraceRlConfig, context: AlgorithmContext) -> TraceRl:
    """Return the algorithm with its settings and the run's context."""
    return TraceRl("trace_rl", config, context)


class TraceRl(TraceGradient):
    """The policy gradient, whose advantages a teacher can spread over tokens."""

    config: TraceRlConfig

    def prepared(self, policy: Policy, plan: Plan, collect: Collect) -> Plan:
        """Return the states; with `credit` they have an advantage for each token."""
        c, batch = self.config, plan.batch
        tokens = int(batch.loss_mask.sum())
        if c.credit is None:
            collect.metrics.add("credited", 0, tokens)
            return plan
        key = "credit", self.context.seed, collect.update
        future = verified_future(policy, self.context, plan, collect, key, c.reveal_ratio)
        is_shown = future.shown.any(1, keepdim=True) & batch.loss_mask & ~future.shown
        collect.metrics.add("credited", int(is_shown.sum()), tokens)
        length = batch.targets.shape[1]
        ids = torch.cat([batch.ids[:, :-length], future.completions], 1)
        with policy.reference():
            teacher = self.logps(policy, batch.with_tensors(ids=ids).to(policy.device))
        gap = (teacher.cpu() - batch.old_logps) * is_shown
        weight = credit_weight(c, self.context.made.updates, self.context.updates)
        advantage = credited(batch.advantage, gap, weight, c.credit_range)
        return plan.with_batch(batch.with_tensors(advantage=advantage))
