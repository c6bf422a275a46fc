"""Routed: policy gradient on recorded states, and distillation from a verified future.

Own and experimental. With `teach: better` (bounded and gated) rollouts of positive advantage also
learn the teacher's distribution; with `teach: all` every rollout does. With `teach: wrong` wrong
rollouts that have a right sibling learn from the teacher alone. Without distillation and anchor it
is TraceRL (arXiv 2509.06949).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from dopsd.algorithms.common.base import LossOutput
from dopsd.algorithms.common.losses import entropy, masked_cross_entropy, metric_sums
from dopsd.algorithms.d_opsd.algorithm import sampleable_logits
from dopsd.algorithms.d_opsd.divergence import Divergence, shared_mass
from dopsd.algorithms.d_opsd.teacher import TeacherPrompts
from dopsd.algorithms.trace_rl.algorithm import TraceRl
from dopsd.algorithms.trace_rl.states import Trace
from dopsd.core.metrics import MetricSums
from dopsd.core.tensors import index_without, left_pad, true_positions
from verified_future.teacher import verified_future

if TYPE_CHECKING:
    from torch import Tensor

    from dopsd.algorithms.common.base import AlgorithmContext
    from dopsd.algorithms.trace_rl.algorithm import Collect
    from dopsd.algorithms.trace_rl.states import Plan
    from dopsd.core.types import Rollout
    from dopsd.models.policy import Policy
    from verified_future.routed.config import RoutedConfig


def build(config: RoutedConfig, context: AlgorithmContext) -> Routed:
    """Return the algorithm with its settings and the run's context."""
    return Routed("routed", config, context)


class Routed(TraceRl):
    """Route the states of each rollout to the policy gradient, to the teacher, or to both."""

    config: RoutedConfig

    def __init__(self, method: str, config: RoutedConfig, context: AlgorithmContext) -> None:
        super().__init__(method, config, context)
        self.prompts = TeacherPrompts(method, self.collector, config.max_teacher_prompt)

    def prepared(self, policy: Policy, plan: Plan, collect: Collect) -> Plan:
        """Return the states that learn something, with their teacher and weights."""
        c = self.config
        key = "routed", self.context.seed, collect.number
        future = verified_future(policy, self.context, plan, collect, key, c.reveal_ratio)
        beta = strength(c, self.context.made.updates, self.context.updates)
        siblings = right_siblings(collect) if c.teach == "wrong" and beta else {}
        lessons = {
            index: sibling for index, sibling in siblings.items() if future.is_known[index]
        }  # a rollout without a place for the gold answer stays with the policy gradient
        numbers = range(len(collect.rewarded))
        has_lesson = torch.tensor([n in lessons for n in numbers])[plan.rollout]
        is_taught = future.shown.any(1)
        if c.teach != "all":
            is_taught &= has_lesson if c.teach == "wrong" else plan.batch.advantage > 0
        collect.metrics.add("taught_states", int(is_taught.sum()), len(is_taught))
        prompts, prompt_mask = self._prompts(policy, collect, lessons)
        batch = RoutedTrace(
            **plan.batch.tensors(),
            teacher_ids=torch.cat([prompts[plan.rollout], future.completions], 1),
            teacher_mask=torch.cat([prompt_mask[plan.rollout], torch.ones_like(future.shown)], 1),
            base_logps=self._base_logps(policy, plan),
            policy_weight=(~has_lesson).float(),
            distil_weight=is_taught * beta,
        )
        rows = (~has_lesson | is_taught).nonzero()[:, 0].tolist()
        return plan.with_batch(batch).rows(rows)

    def _prompts(
        self, policy: Policy, collect: Collect, lessons: dict[int, Rollout]
    ) -> tuple[Tensor, Tensor]:
        """Return the teacher's prompts [R, Q] and their mask: some have a sibling's answer."""
        problems = {problem.id: problem for problem in collect.problems}
        pairs = [
            (problems[sibling.problem_id], self.collector.text(policy, sibling, special=False))
            for sibling in lessons.values()
        ]
        prompts = dict(zip(lessons, self.prompts.of(policy, pairs), strict=True))
        plain = [item.rollout.prompt_ids for item in collect.rewarded]
        return left_pad([prompts.get(n, ids) for n, ids in enumerate(plain)], policy.eos_id)

    def _base_logps(self, policy: Policy, plan: Plan) -> Tensor:
        if not self.config.anchor_weight:
            return plan.batch.old_logps
        with policy.reference():
            return self.logps(policy, plan.batch.to(policy.device)).cpu()

    def loss(self, policy: Policy, batch: RoutedTrace) -> LossOutput:
        """Return policy gradient, distillation and anchor, weighted and summed over states."""
        c, length = self.config, batch.targets.shape[1]
        rows, columns = true_positions(batch.on_host("loss_mask"), batch.ids.device)  # [N]
        hidden = policy.hidden(batch.ids, batch.attention_mask())[:, -length:][rows, columns]
        logits = policy.head(hidden)  # [N, V]
        cross_entropy = masked_cross_entropy(logits, batch.targets[rows, columns])
        empty = torch.zeros(batch.targets.shape, device=hidden.device)
        logps = empty.index_put((rows, columns), -cross_entropy)  # [B, G]
        losses, totals = self.gains(logps, batch)
        counts = dict.fromkeys(totals, batch.on_host("loss_mask").sum().item())
        losses = batch.policy_weight * losses
        if c.anchor_weight:
            losses = losses + c.anchor_weight * anchor(logps, batch.base_logps, batch.loss_mask)
        if c.distil_weight:
            taught, figures = self._distillation(policy, batch, logits, (rows, columns))
            losses = losses + batch.distil_weight * taught
            is_taught = batch.on_host("distil_weight") > 0
            lessons = batch.lesson_mask(on_host=True)[is_taught].sum().item()
            counts |= dict.fromkeys(figures, lessons)
            totals |= figures
        sums = {name: (total, counts[name]) for name, (total, _) in metric_sums(totals, 1).items()}
        return LossOutput((losses * batch.weight).sum(), MetricSums(sums))

    def _distillation(
        self, policy: Policy, batch: RoutedTrace, logits: Tensor, where: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the mean divergence of each state [B], and totals of those that are taught.

        Tokens that the teacher is shown have none: it would only repeat them.
        """
        rows, length = where[0], batch.targets.shape[1]
        with torch.no_grad(), policy.reference():
            mask = batch.attention_mask("teacher_mask")
            seen = policy.hidden(batch.teacher_ids, mask)[:, -length:][where]
            teacher = sampleable_logits(policy, seen)
        sampleable = index_without(tuple(policy.suppress_tokens), logits.shape[-1], logits.device)
        at = lesson(logits.index_select(-1, sampleable), teacher, self.config)
        is_lesson = batch.lesson_mask()[where]
        total = torch.zeros_like(batch.weight).index_add(0, rows, at.loss * is_lesson)
        is_taught = (batch.distil_weight > 0)[rows] & is_lesson
        figures = {
            "divergence": at.divergence,
            "scaled_positions": at.scaled,
            "shared_mass": at.shared_mass,
        }
        totals = {name: (value * is_taught).sum() for name, value in figures.items()}
        return total / batch.loss_mask.sum(1), totals


def right_siblings(collect: Collect) -> dict[int, Rollout]:
    """Return for each wrong rollout, by its index, the first right one of its problem if any."""
    right: dict[str, Rollout] = {}
    for item in collect.rewarded:
        if item.is_correct:
            right.setdefault(item.rollout.problem_id, item.rollout)
    return {
        index: right[item.rollout.problem_id]
        for index, item in enumerate(collect.rewarded)
        if not item.is_correct and item.rollout.problem_id in right
    }


@dataclass(frozen=True)
class RoutedTrace(Trace):
    """Recorded states with a teacher, and with the weights of their losses."""

    teacher_ids: Tensor  # [B, Q+G]
    teacher_mask: Tensor  # [B, Q+G], False on padding
    base_logps: Tensor  # [B, G], of the targets under the initial policy
    policy_weight: Tensor  # [B], 1 where the policy gradient counts, else 0
    distil_weight: Tensor  # [B], beta where the teacher counts, else 0

    def lesson_mask(self, on_host: bool = False) -> Tensor:
        """Return the predicted tokens that the teacher is not shown [B, G].

        Args:
            on_host: in main memory.
        """
        names = "loss_mask", "ids", "teacher_ids"
        predicted, ids, seen = (
            self.on_host(name) if on_host else getattr(self, name) for name in names
        )
        length = predicted.shape[1]
        return predicted & (ids[:, -length:] == seen[:, -length:])


class Lesson(NamedTuple):
    """The divergence at N positions, and figures of it."""

    loss: Tensor  # [N], bounded and weighted
    divergence: Tensor  # [N], before that
    scaled: Tensor  # [N], 1 where the clip scales a position down
    shared_mass: Tensor  # [N]


def strength(config: RoutedConfig, update: int, updates: int) -> float:
    """Return beta at a collect: it rises from 0, and with `distil_decay` falls to 0.

    Args:
        config: the settings.
        update: updates of the run before the collect.
        updates: updates of the run.
    """
    rise = config.distil_warmup * updates
    beta = config.distil_weight * (min(1.0, (update + 1) / rise) if rise else 1.0)
    if config.distil_decay and updates > rise:
        beta *= max(0.0, 1.0 - max(0.0, update - rise) / (updates - rise))
    return beta


def lesson(student: Tensor, teacher: Tensor, config: RoutedConfig) -> Lesson:
    """Return g D(p, q) at each position, g = min(1, clip / D) without gradients.

    With `by_confidence` a position also weighs exp(-H(q) / ln V).

    Args:
        student: logits [N, V].
        teacher: logits [N, V].
        config: divergence, clip and by_confidence.
    """
    measure = Divergence(config.divergence, clip=config.clip, is_by_position=True)
    value, unclipped, scaled = measure(student, teacher)
    if config.by_confidence:
        value = value * (-entropy(teacher) / math.log(teacher.shape[-1])).exp()
    return Lesson(value, unclipped.detach(), scaled, shared_mass(student.detach(), teacher))


def anchor(logps: Tensor, base_logps: Tensor, loss_mask: Tensor) -> Tensor:
    """Return the mean of (ln p / p_base)^2 / 2 over the predicted tokens of each state [B].

    Args:
        logps: [B, G], ln p of the targets, 0 where nothing is predicted.
        base_logps: [B, G], the same under the initial policy.
        loss_mask: [B, G].
    """
    return (torch.square(logps - base_logps) / 2).sum(1) / loss_mask.sum(1)
