"""Prompts of a teacher that is told a solution or an answer (arXiv 2606.18195, section 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError
from dopsd.core.progress import log

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from dopsd.core.types import Problem
    from dopsd.models.policy import Policy
    from dopsd.rollout.collector import RolloutCollector

SHOWN = (
    "{question}\n\nHere is a reference solution:\n{solution}\n\nAfter understanding the reference"
    " solution, please try to solve this problem using your own approach below:"
)


@dataclass
class TeacherPrompts:
    """Makes prompts that tell a solution; logs once if some are cut.

    Attributes:
        method: name of the method, for messages.
        collector: the task and how it asks.
        max_prompt: tokens of a prompt at most, the last ones.
        is_cut_logged: whether the log line about cut prompts was written.
    """

    method: str
    collector: RolloutCollector
    max_prompt: int
    is_cut_logged: bool = False

    def of(self, policy: Policy, pairs: Sequence[tuple[Problem, str]]) -> list[Tensor]:
        """Return the last `max_prompt` tokens [Q] of each prompt.

        Args:
            policy: the model, with its text conversion.
            pairs: problems, each with the text that the teacher is told.

        Raises:
            DopsdError: if prompt and answer exceed the length that the model was trained for.
        """
        length = self.collector.sampling.gen_length
        prompts = [self._with_solution(policy, *pair) for pair in pairs]
        longest = max(map(len, prompts), default=0)
        prompt_length, room = min(longest, self.max_prompt), policy.max_length - length
        if prompt_length > room:
            raise DopsdError(
                f"method.{self.method}.max_teacher_prompt: a teacher's prompt has {prompt_length}"
                f" tokens, but with an answer of {length} the model has room for {room}; set at"
                f" most {room}",
                code=Code.MISFIT,
            )
        if longest > self.max_prompt and not self.is_cut_logged:
            self.is_cut_logged = True
            log(
                f"{self.method}: some of the teacher's prompts are cut to their last"
                f" {self.max_prompt} tokens; the longest has {longest}"
            )
        return [ids[-self.max_prompt :] for ids in prompts]

    def _with_solution(self, policy: Policy, problem: Problem, solution: str) -> Tensor:
        """Return the prompt [Q] with the solution; a compact prompt adds no words to it."""
        collector = self.collector
        *earlier_messages, last_message = collector.task.messages(problem, collector.prompt_style)
        template = "{question}{solution}" if collector.prompt_style == "compact" else SHOWN
        content = template.format(question=last_message["content"], solution=solution)
        return policy.text.encode(
            [*earlier_messages, last_message | {"content": content}], collector.sampling.prefill
        )
