"""Answer infilling: the teacher sees the gold answer where the student's own answer will stand.

Own. States, positions and loss are those of d-OPSD (arXiv 2606.18195, section 3); one rollout a
problem is enough, right or wrong. With `least_shift`, collects in which the answer tells the
teacher too little learn from rewards, as in TraceRL (arXiv 2509.06949).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dopsd.algorithms.common.base import AlgorithmContext, Collected, LossOutput
from dopsd.algorithms.common.batch import States
from dopsd.algorithms.d_opsd.algorithm import DOpsd, build_components
from dopsd.algorithms.infill.lessons import Answers, answer_shift, lesson, lesson_count, lesson_view
from dopsd.algorithms.trace_rl.algorithm import TraceRl
from dopsd.algorithms.trace_rl.states import Trace
from dopsd.core.types import Problem, Rollout
from dopsd.rollout.collector import RolloutGroup, SelectedRollout

if TYPE_CHECKING:
    from dopsd.algorithms.infill.config import InfillConfig
    from dopsd.models.policy import Policy

PROBED = 4  # of so many states one is measured


def build(config: InfillConfig, context: AlgorithmContext) -> Infill:
    """Return the algorithm with its settings and the run's context."""
    return Infill(config, context)


class Infill(DOpsd):
    """Distil on the student's states, with a right answer in the teacher's later blocks."""

    config: InfillConfig

    def __init__(self, config: InfillConfig, context: AlgorithmContext) -> None:
        self.answers = Answers(config, context.task)
        super().__init__(config, *build_components(config, context))
        self.rewards = TraceRl("infill", config.rewards, context)

    def collect(self, policy: Policy, problems: list[Problem], collect: int) -> Collected:
        """Return updates from the teacher; with `least_shift` they can be those of rewards.

        The teacher's rollouts are then the first ones of the groups, and count once.
        """
        taught = self._taught(policy, problems, collect)
        if not self.config.least_shift:
            return taught
        probed = [
            [b.rows(list(range(0, len(b), PROBED))) for b in batches if isinstance(b, States)]
            for batches in taught.updates
        ]
        shift = answer_shift(policy, probed, self.collector.sampling.batch_size)
        is_taught = shift.mean >= self.config.least_shift
        collected = taught if is_taught else self.rewards.collect(policy, problems, collect)
        collected.stats.metrics.add("answer_shift", shift.mean)
        collected.stats.metrics.add("taught_collects", is_taught)
        return collected

    def _taught(self, policy: Policy, problems: list[Problem], collect: int) -> Collected:
        """Sample rollouts, put answers into their spans, and cut their states into updates.

        Rollouts without a usable span are dropped.
        """
        stops = not self.collector.task.graded
        groups = self.collector.sample(policy, problems, collect, stops)
        scored = [self.collector.scored(group) for group in groups]
        rollouts = [self._rollout(*pair) for pair in zip(groups, scored, strict=True)]
        known = [
            None if r is None else self.answers.of(policy, group)
            for group, r in zip(groups, rollouts, strict=True)
        ]
        after_eos = self.collector.sampling.text_after_eos
        lessons = [
            lesson(policy, self.collector.task, group.problem, r, k, after_eos) if r and k else None
            for group, r, k in zip(groups, rollouts, known, strict=True)
        ]
        found = [item for item in lessons if item]
        views = [lesson_view(item, self.config) for item in found]
        updates = self.updates(policy, [item.rollout for item in found], views, collect)
        items = [
            replace(s, is_kept=item is not None) for s, item in zip(scored, lessons, strict=True)
        ]
        collected = Collected(updates, self.collector.summary(policy, items))
        lesson_count(collected.stats.metrics, sum(k is not None for k in known), found)
        return collected

    def _rollout(self, group: RolloutGroup, item: SelectedRollout) -> Rollout | None:
        """Return the rollout to learn from; None if none is kept.

        With a sibling's answer it is the first attempt: the best one would be the sibling.
        """
        is_first = self.config.answer == "sibling" and self.config.keep == "all"
        return (group.rollouts[0] if is_first else item.best) if item.is_kept else None

    def loss(self, policy: Policy, batch: States | Trace) -> LossOutput:
        """Return the divergence to the teacher, or the loss of rewards."""
        if isinstance(batch, Trace):
            return self.rewards.loss(policy, batch)
        return super().loss(policy, batch)
