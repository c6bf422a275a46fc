"""Answer infilling: the teacher sees the gold answer where the student's own answer will stand.

Own. States, positions and loss are those of d-OPSD (arXiv 2606.18195, section 3); one rollout a
problem is enough, right or wrong. With `least_shift`, collects in which the answer tells the
teacher too little learn from rewards, as in TraceRL (arXiv 2509.06949).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dopsd.algorithms.common.base import AlgorithmContext, Collected, LossOutput
from dopsd.algorithms.common.batch import Batch, MaskedTexts, States
from dopsd.algorithms.common.losses import masked_diffusion_loss
from dopsd.algorithms.common.masking import Text, masked
from dopsd.algorithms.d_opsd.algorithm import DOpsd, build_components
from dopsd.algorithms.d_opsd.teacher import AS_STUDENT, TeacherPrompts, TeacherView
from dopsd.algorithms.infill.lessons import (
    Answers,
    Lesson,
    answer_shift,
    count,
    lesson,
    trained_blocks,
    view,
)
from dopsd.algorithms.trace_rl.algorithm import TraceRl
from dopsd.algorithms.trace_rl.states import Trace
from dopsd.core.metrics import MetricSums
from dopsd.core.rng import key_from
from dopsd.core.types import Problem, Rollout
from dopsd.rollout.answer_span import answer_span
from dopsd.rollout.collector import RolloutGroup, SelectedRollout

if TYPE_CHECKING:
    from dopsd.algorithms.infill.config import InfillConfig
    from dopsd.models.policy import Policy

PROBED = 4  # of so many states one is measured


def build(config: InfillConfig, context: AlgorithmContext) -> Infill:
    """Return the algorithm with its settings and the run's context.

    Raises:
        DopsdError: if the task has no such answers.
    """
    return Infill(config, context)


class Infill(DOpsd):
    """Distil on the student's states, with a right answer in the teacher's later blocks."""

    config: InfillConfig

    def __init__(self, config: InfillConfig, context: AlgorithmContext) -> None:
        self.answers = Answers(config, context.task, context.seed)
        super().__init__(config, *build_components(config, context))
        self.prompts = TeacherPrompts("infill", self.collector, config.max_teacher_prompt)
        self.rewards = TraceRl("infill", config.rewards, context)

    def collect(self, policy: Policy, problems: list[Problem], update: int) -> Collected:
        """Return updates from the teacher; with `least_shift` they can be those of rewards.

        The teacher's rollouts are then the first ones of the groups, and count once.
        """
        taught = self._taught(policy, problems, update)
        if not self.config.least_shift:
            return taught
        probed = [
            [b.rows(list(range(0, len(b), PROBED))) for b in batches if isinstance(b, States)]
            for batches in taught.updates
        ]
        shift = answer_shift(policy, probed, self.collector.sampling.batch_size)
        is_taught = shift.mean >= self.config.least_shift
        collected = taught if is_taught else self.rewards.collect(policy, problems, update)
        collected.stats.metrics.add("answer_shift", shift.mean)
        collected.stats.metrics.add("taught_collects", is_taught)
        return collected

    def _taught(self, policy: Policy, problems: list[Problem], update: int) -> Collected:
        """Sample rollouts, put answers into their spans, and cut their states into updates.

        Rollouts without a usable span are dropped, but with `show: future` and `states: all`.
        """
        stops = not self.collector.task.graded
        groups = self.collector.sample(policy, problems, update, stops)
        scored = [self.collector.scored(group) for group in groups]
        rollouts = [self._rollout(*pair) for pair in zip(groups, scored, strict=True)]
        if self.config.show == "future":
            views = [None if r is None else self._own_view(policy, r) for r in rollouts]
            used = [(r, v) for r, v in zip(rollouts, views, strict=True) if r and v]
            updates = self.updates(policy, [r for r, _ in used], [v for _, v in used], update)
            return self._collected(policy, scored, updates, [v is not None for v in views])
        known = [
            None if r is None else self.answers.of(policy, group, update)
            for group, r in zip(groups, rollouts, strict=True)
        ]
        after_eos = self.collector.sampling.text_after_eos
        lessons = [
            lesson(policy, self.collector.task, group.problem, r, k, after_eos) if r and k else None
            for group, r, k in zip(groups, rollouts, known, strict=True)
        ]
        found = [item for item in lessons if item]
        updates = (
            self._masked_updates(policy, found, update)
            if self.config.target == "answer"
            else self.updates(
                policy, [i.rollout for i in found], self._views(policy, found), update
            )
        )
        collected = self._collected(policy, scored, updates, [item is not None for item in lessons])
        count(collected.stats.metrics, sum(k is not None for k in known), found)
        return collected

    def _rollout(self, group: RolloutGroup, item: SelectedRollout) -> Rollout | None:
        """Return the rollout to learn from; None if none is kept.

        With a sibling's answer it is the first attempt: the best one would be the sibling.
        """
        is_first = self.config.answer == "sibling" and self.config.keep == "all"
        return (group.rollouts[0] if is_first else item.best) if item.is_kept else None

    def _collected(
        self,
        policy: Policy,
        scored: Sequence[SelectedRollout],
        updates: list[list[Batch]],
        is_used: Sequence[bool],
    ) -> Collected:
        """Return the updates; rollouts without a usable span count as not kept."""
        items = [replace(item, is_kept=used) for item, used in zip(scored, is_used, strict=True)]
        return Collected(updates, self.collector.summary(policy, items))

    def _own_view(self, policy: Policy, rollout: Rollout) -> TeacherView | None:
        """Return the view of d-OPSD, limited to the chosen states; None without a span."""
        if self.config.states == "all":
            return AS_STUDENT
        span = answer_span(policy.text, rollout.completion_ids, policy.eos_id)
        if span is None:
            return None
        first, last = trained_blocks(span, self.config, self.blocks, rollout)
        return TeacherView(first_block=first, last_block=last)

    def _views(self, policy: Policy, lessons: Sequence[Lesson]) -> list[TeacherView]:
        """Return what the teacher of each rollout is given."""
        views = [view(item, self.config, self.blocks) for item in lessons]
        if self.config.place == "span":
            return views
        prompts = self.prompts.of(policy, [(item.problem, item.answer) for item in lessons])
        return [replace(v, prompt_ids=ids) for v, ids in zip(views, prompts, strict=True)]

    def _masked_updates(
        self, policy: Policy, lessons: Sequence[Lesson], update: int
    ) -> list[list[Batch]]:
        """Return updates with new random masks over the answers, what follows them masked."""
        numbers = range(self.config.updates_per_trajectory)
        if not lessons:
            return [] if self.config.skip_empty else [[] for _ in numbers]
        return [[masked(policy, self._texts(lessons, update, number))] for number in numbers]

    def _texts(self, lessons: Sequence[Lesson], update: int, number: int) -> list[Text]:
        draws, seed = self.config.draws, self.collector.seed
        return [
            Text(
                item.rollout.prompt_ids,
                item.filled.ids,
                key_from("infill", seed, update, number, item.problem.id, draw),
                1 / draws,
                (item.filled.start, item.filled.end),
            )
            for item in lessons
            for draw in range(draws)
        ]

    def loss(self, policy: Policy, batch: States | MaskedTexts | Trace) -> LossOutput:
        """Return the divergence to the teacher, or the loss of masked answers or of rewards.

        The cross-entropy of masked answers has no metrics of its own: it is the update's `loss`.
        """
        if isinstance(batch, Trace):
            return self.rewards.loss(policy, batch)
        if not isinstance(batch, MaskedTexts):
            return super().loss(policy, batch)
        losses = masked_diffusion_loss(policy, batch)  # [B]
        return LossOutput((losses * batch.weight).sum(), MetricSums())
