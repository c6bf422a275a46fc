"""AR-style OPSD: the teacher is shown a reference solution in its prompt, and no future (arXiv 2606.18195, section 4).

One attempt a problem, and every trajectory is trained on. It runs on tasks with reference solutions: on the embedded
one a worked solution is derived from the answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dopsd.algorithms.common.distillation import SelfDistillation, build_components
from dopsd.algorithms.common.solutions import solution
from dopsd.core.errors import DopsdError
from dopsd.core.progress import log

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from dopsd.algorithms.ar_opsd.config import ArOpsdConfig
    from dopsd.algorithms.common.base import AlgorithmContext
    from dopsd.core.types import Problem
    from dopsd.models.policy import Policy
    from dopsd.rollout.groups import SelectedRollout

SHOWN = (
    "{question}\n\nHere is a reference solution:\n{solution}\n\nAfter understanding the reference solution, please try to "
    "solve this problem using your own approach below:"
)


def build(config: ArOpsdConfig, context: AlgorithmContext) -> DistilReference:
    return DistilReference(config, *build_components(config, context))


class DistilReference(SelfDistillation):
    """The method: the student's states, after a prompt that tells the solution."""

    config: ArOpsdConfig
    is_told = False

    def teacher_prompts(
        self, policy: Policy, kept: Sequence[SelectedRollout]
    ) -> Mapping[str, Tensor]:
        """Their last `max_teacher_prompt` tokens [Q] by problem; says once that some are cut."""
        most, length = self.config.max_teacher_prompt, self.collector.sampling.gen_length
        whole = {item.problem.id: self._shown(policy, item.problem) for item in kept}
        longest = max(map(len, whole.values()), default=0)
        taken, room = min(longest, most), policy.max_length - length
        if taken > room:
            raise DopsdError(
                f"method.ar_opsd.max_teacher_prompt: a teacher's prompt has {taken} tokens, and beside an answer of "
                f"{length} the model was trained for {room}; set at most that"
            )
        if longest > most and not self.is_told:
            self.is_told = True
            log(
                f"ar_opsd: some of the teacher's prompts are cut to their last {most} tokens: one has {longest}"
            )
        return {name: ids[-most:] for name, ids in whole.items()}

    def _shown(self, policy: Policy, problem: Problem) -> Tensor:
        """[Q]; a compact prompt knows no words, and has the solution after it."""
        asked = self.collector
        *before, last = asked.task.messages(problem, asked.prompt_style)
        text = "{question}{solution}" if asked.prompt_style == "compact" else SHOWN
        told = text.format(
            question=last["content"], solution=solution(asked.task, problem, "ar_opsd")
        )
        return policy.encode([*before, last | {"content": told}], asked.sampling.prefill)
