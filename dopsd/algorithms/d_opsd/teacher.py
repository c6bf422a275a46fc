"""What the teacher of a rollout may be given: which part of the future, and which prompt.

states.reveal draws the share that it is shown; models/teachers.py has its weights.

The prompt may tell a solution or an answer (arXiv 2606.18195, section 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dopsd.core.errors import Code
from dopsd.core.progress import log
from dopsd.core.settings import LARGEST
from dopsd.core.types import Problem, Rollout, plain, unplain

if TYPE_CHECKING:
    from dopsd.distributed.process_group import ProcessGroup
    from dopsd.models.policy import Policy
    from dopsd.rollout.collector import RolloutCollector


@dataclass(frozen=True)
class TeacherView:
    """What the teacher of a rollout may be shown; by default the student's prompt and answer."""

    prompt_ids: Tensor | None = None  # [Q], the teacher's own prompt; None: the student's
    # [G], the completion whose tokens the teacher is shown; None: the rollout's own
    shown_ids: Tensor | None = None
    showable: Tensor | None = None  # [G], positions that it may be shown; None: all
    least: int = 0  # positions that it is shown at least, where as many can be shown
    # positions from this one on are shown only in states in which all of them are masked
    whole_from: int = LARGEST

    def prompt(self, rollout: Rollout) -> Tensor:
        """Return the prompt [Q] of the teacher."""
        return rollout.prompt_ids if self.prompt_ids is None else self.prompt_ids

    def completion(self, rollout: Rollout) -> Tensor:
        """Return the completion [G] whose tokens the teacher is shown."""
        return rollout.completion_ids if self.shown_ids is None else self.shown_ids

    def limit(self, masked: Tensor) -> Tensor:
        """Return which of the positions that are masked in each state, [S, G], may be shown."""
        is_before = torch.arange(masked.shape[1]) < self.whole_from  # [G]
        limited = masked & (is_before | (masked | is_before).all(1, keepdim=True))
        return limited if self.showable is None else limited & self.showable


AS_STUDENT = TeacherView()


def gathered(
    group: ProcessGroup, rollouts: Sequence[Rollout], views: Sequence[TeacherView]
) -> tuple[list[Rollout], list[TeacherView]]:
    """Return the rollouts of all processes, and what the teacher of each is given."""
    pairs = group.all_gather_object(
        [(r.to_dict(), plain(view)) for r, view in zip(rollouts, views, strict=True)]
    )
    return (
        [Rollout.from_dict(values) for values, _ in pairs],
        [TeacherView(**unplain(values)) for _, values in pairs],
    )


SHOWN = (
    "{question}\n\nHere is a reference solution:\n{solution}\n\nAfter understanding the reference"
    " solution, please try to solve this problem using your own approach below:"
)


@dataclass
class TeacherPrompts:
    """Makes prompts that tell a solution; logs once if some are cut."""

    method: str  # name of the method, for messages
    collector: RolloutCollector  # the task and how it asks
    max_prompt: int  # tokens of a prompt at most, the last ones
    is_cut_logged: bool = False  # whether the log line about cut prompts was written

    def of(self, policy: Policy, pairs: Sequence[tuple[Problem, str]]) -> list[Tensor]:
        """Return the last `max_prompt` tokens [Q] of each prompt."""
        length = self.collector.sampling.gen_length
        prompts = [self._with_solution(policy, *pair) for pair in pairs]
        longest = max(map(len, prompts), default=0)
        prompt_length, room = min(longest, self.max_prompt), policy.max_length - length
        if prompt_length > room:
            raise Code.MISFIT.error(
                f"method.{self.method}.max_teacher_prompt: a teacher's prompt has {prompt_length}"
                f" tokens, but with an answer of {length} the model has room for {room}; set at"
                f" most {room}"
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
