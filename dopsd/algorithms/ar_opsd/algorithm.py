"""AR-style OPSD: the teacher's prompt has a reference solution, and no future is revealed.

arXiv 2606.18195, section 4. Each problem is attempted once, and every trajectory is trained on.
Tasks need reference solutions; for Sudoku a worked solution is derived from the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dopsd.algorithms.common.base import AlgorithmContext
from dopsd.algorithms.common.solutions import solution
from dopsd.algorithms.d_opsd.algorithm import DOpsd, build_components
from dopsd.algorithms.d_opsd.teacher import TeacherPrompts, TeacherView
from dopsd.rollout.collector import SelectedRollout

if TYPE_CHECKING:
    from dopsd.algorithms.ar_opsd.config import ArOpsdConfig
    from dopsd.models.policy import Policy


def build(config: ArOpsdConfig, context: AlgorithmContext) -> ArOpsd:
    """Return the algorithm with its settings and the run's context."""
    return ArOpsd(config, context)


class ArOpsd(DOpsd):
    """Distil on the student's states, with a solution in the teacher's prompt."""

    def __init__(self, config: ArOpsdConfig, context: AlgorithmContext) -> None:
        super().__init__(config, *build_components(config, context))
        self.prompts = TeacherPrompts("ar_opsd", self.collector, config.max_teacher_prompt)

    def teacher_views(
        self, policy: Policy, selected: Sequence[SelectedRollout]
    ) -> Sequence[TeacherView]:
        """Return the prompts with solutions."""
        task, problems = self.collector.task, [item.problem for item in selected]
        pairs = [(problem, solution(task, problem, "ar_opsd")) for problem in problems]
        return [TeacherView(prompt_ids=ids) for ids in self.prompts.of(policy, pairs)]
