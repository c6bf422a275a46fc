"""Reference solutions, for methods that learn from them or show them to a teacher."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor
from torch.nn.functional import pad

from dopsd.core.errors import Code, DopsdError
from dopsd.core.progress import log
from dopsd.tasks.common.sources import Row, encodable, text_of
from dopsd.tasks.common.task import LayoutTask, Task

if TYPE_CHECKING:
    from dopsd.core.types import Problem
    from dopsd.models.policy import Policy

Chat = list[dict[str, str]]
ROLES = ("system", "user", "assistant")


def chat_of(row: Row) -> tuple[Chat, str]:
    """Return the chat and the answer of a row {question, response} or {messages}.

    Raises:
        DopsdError: if the row has neither, or its messages do not end with the assistant's.
    """
    messages = row.values.get("messages")
    if messages is None:
        if not {"question", "response"} <= row.values.keys():
            raise DopsdError(
                f"{row.place}: expected columns question and response, or messages; columns found:"
                f" {', '.join(row.values) or 'none'}; mend the row",
                code=Code.SOURCE_ROW,
            )
        question = text_of(row, "question")
        return [{"role": "user", "content": question}], text_of(row, "response")
    is_chat = isinstance(messages, list) and all(
        isinstance(m, dict) and m.get("role") in ROLES and isinstance(m.get("content"), str)
        for m in messages
    )
    if not is_chat or len(messages) < 2 or messages[-1]["role"] != "assistant":  # noqa: PLR2004  # a question and its answer
        raise DopsdError(
            f"{row.place}: expected messages [{{role, content}}, ...] of {', '.join(ROLES)} that"
            f" end with the assistant's, found {str(messages)[:60]}",
            code=Code.SOURCE_ROW,
        )
    *chat, last = [
        {"role": m["role"], "content": encodable(row, "messages", m["content"])} for m in messages
    ]
    return chat, last["content"]


def solution(task: Task, problem: Problem, method: str) -> str:
    """Return the problem's own reference, or the task's worked solution.

    Args:
        task: the task.
        problem: the problem.
        method: name of the method, for messages.

    Raises:
        DopsdError: if there is neither: Countdown's rows from a file have answers alone.
    """
    if problem.reference:
        return problem.reference
    if hasattr(task, "worked_solution"):
        text: str = task.worked_solution(problem, True)
        return text
    raise DopsdError(
        f"{method}: {task.name} problem {problem.id} has no reference solution; leave {method} out"
        " of matrix.methods, or the problem out of the data",
        code=Code.NO_SOLUTIONS,
    )


def taught_solution(task: Task, problem: Problem, method: str) -> str:
    """Return `solution` in the layout that the task's prompt asks for, for methods that learn it.

    Raises:
        DopsdError: if there is none.
    """
    if problem.reference and isinstance(task, LayoutTask):
        return task.laid_out_reference(problem)
    return solution(task, problem, method)


@dataclass
class Solutions:
    """Solutions that a method learns, as tokens; logs once if some are longer than G.

    Attributes:
        task: the task.
        method: name of the method, for messages.
        length: G, tokens of a solution.
        is_cut_logged: whether the log line about cut solutions was written.
    """

    task: Task
    method: str
    length: int
    is_cut_logged: bool = False

    def of(self, policy: Policy, problems: Sequence[Problem]) -> list[Tensor]:
        """Return each problem's solution [G], padded with end of text."""
        return [padded(ids, self.length, policy.eos_id) for ids in self.tokens(policy, problems)]

    def tokens(self, policy: Policy, problems: Sequence[Problem]) -> list[Tensor]:
        """Return each problem's solution, neither cut nor padded."""
        tokens = [
            policy.text.tokens(taught_solution(self.task, problem, self.method))
            for problem in problems
        ]
        longest = max(map(len, tokens))
        if longest > self.length and not self.is_cut_logged:
            self.is_cut_logged = True
            log(
                f"{self.method}: some solutions are cut, with their answers, to {self.length}"
                f" tokens (sampling.gen_length, or `length` of the method); the longest has"
                f" {longest}"
            )
        return tokens


def padded(tokens: Tensor, length: int, eos_id: int) -> Tensor:
    """Return the first `length` tokens, padded with end of text.

    Args:
        tokens: [n].
        length: tokens of the result.
        eos_id: id of end of text.

    Returns:
        [length].
    """
    return pad(tokens[:length], (0, max(0, length - len(tokens))), value=eos_id)
