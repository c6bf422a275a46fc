"""AR-style OPSD: the teacher's prompt has a reference solution, and no future is revealed.

arXiv 2606.18195, section 4. Each problem is attempted once, and every trajectory is trained on.
Tasks need reference solutions; for Sudoku a worked solution is derived from the answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dopsd.algorithms.common.distillation import SelfDistillation, build_components
from dopsd.algorithms.common.solutions import solution
from dopsd.core.error_codes import Code
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
    "{question}\n\nHere is a reference solution:\n{solution}\n\nAfter understanding the reference"
    " solution, please try to solve this problem using your own approach below:"
)


def build(config: ArOpsdConfig, context: AlgorithmContext) -> ArOpsd:
    """Return the algorithm with its settings and the run's context."""
    return ArOpsd(config, *build_components(config, context))


class ArOpsd(SelfDistillation):
    """Distil on the student's states, with a solution in the teacher's prompt."""

    config: ArOpsdConfig
    is_cut_logged = False

    def teacher_prompts(
        self, policy: Policy, selected: Sequence[SelectedRollout]
    ) -> Mapping[str, Tensor]:
        """Return the last `max_teacher_prompt` tokens [Q] of each prompt, by problem id.

        Logs once if prompts are cut.

        Raises:
            DopsdError: if prompt and answer exceed the length that the model was trained for.
        """
        max_prompt, length = self.config.max_teacher_prompt, self.collector.sampling.gen_length
        prompts = {
            item.problem.id: self._prompt_with_solution(policy, item.problem) for item in selected
        }
        longest = max(map(len, prompts.values()), default=0)
        prompt_length, room = min(longest, max_prompt), policy.max_length - length
        if prompt_length > room:
            raise DopsdError(
                f"method.ar_opsd.max_teacher_prompt: a teacher's prompt has {prompt_length} tokens,"
                f" but with an answer of {length} the model has room for {room}; set at most"
                f" {room}",
                code=Code.MISFIT,
            )
        if longest > max_prompt and not self.is_cut_logged:
            self.is_cut_logged = True
            log(
                f"ar_opsd: some of the teacher's prompts are cut to their last {max_prompt} tokens;"
                f" the longest has {longest}"
            )
        return {name: ids[-max_prompt:] for name, ids in prompts.items()}

    def _prompt_with_solution(self, policy: Policy, problem: Problem) -> Tensor:
        """Return the prompt [Q] with the solution; a compact prompt adds no words to it."""
        collector = self.collector
        *earlier_messages, last_message = collector.task.messages(problem, collector.prompt_style)
        template = "{question}{solution}" if collector.prompt_style == "compact" else SHOWN
        content = template.format(
            question=last_message["content"], solution=solution(collector.task, problem, "ar_opsd")
        )
        return policy.text.encode(
            [*earlier_messages, last_message | {"content": content}], collector.sampling.prefill
        )
