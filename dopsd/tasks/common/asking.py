"""The base class of tasks: ask a model, read splits, and keep to `data.TASK.limit`."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING

from dopsd.core.errors import Code
from dopsd.core.types import Problem, Score
from dopsd.tasks.common.storage import DATA, read_problems

if TYPE_CHECKING:
    from dopsd.tasks.common.config import TaskConfig

PLACE = "{question}"  # where a prompt file takes the question


class AskingTask:
    """Base class of tasks; a task adds its name, instructions, build, fault and verify.

    Prompt style `compact` is the question alone; `instructions` (the task's own, or those of
    `prompt_file`) explain it to a model.
    """

    name: str  # in params.yaml
    graded = False  # whether answers get partial scores
    instructions: str  # the text that explains the task to a model

    def __init__(self, config: TaskConfig) -> None:
        self.config, self.scoring = config, config.scoring
        self.has_own_prompt = config.prompt_file is not None
        if config.prompt_file is not None:
            self.instructions = read_prompt(f"data.{self.name}.prompt_file", config.prompt_file)

    @abstractmethod
    def fault(self, problem: Problem) -> str | None:
        """Return what a problem on disk should have, and what was found; None if it is sound."""

    @abstractmethod
    def verify(self, problem: Problem, text: str) -> Score:
        """Return the answer in a generation, and its score."""

    def load(self, split: str) -> list[Problem]:
        """Read the problems of a split from disk."""
        return read_problems(DATA / self.name / f"{split}.jsonl", self.fault)

    def question(self, problem: Problem) -> str:
        """Return the problem as it follows a prompt of the user's own.

        Tasks whose published question has words around the problem add them.
        """
        return problem.prompt

    def instructed(self, problem: Problem) -> str:
        """Return the task's own instructions, followed by the problem."""
        return f"{self.instructions}\n\n{problem.prompt}"

    def messages(self, problem: Problem, style: str) -> list[dict[str, str]]:
        """Return the chat that asks the problem, messages as {role, content}."""
        if style == "compact":
            text = problem.prompt
        elif self.has_own_prompt:
            text = fill(self.instructions, self.question(problem))
        else:
            text = self.instructed(problem)
        return [{"role": "user", "content": text}]

    def ground_truth(self, problem: Problem) -> object:
        """Return the gold answer as files of generations hold it; `of_generation` reads it."""
        return problem.answer

    def reward(self, problem: Problem, text: str) -> float:
        """Return the reward of a generation in reinforcement learning: by default its score."""
        return self.verify(problem, text).score


def fill(prompt: str, question: str) -> str:
    """Put the question at its place in the prompt, or after the prompt and a blank line."""
    return prompt.replace(PLACE, question) if PLACE in prompt else f"{prompt}\n\n{question}"


def read_prompt(key: str, path: str) -> str:
    """Read a prompt file.

    The text stays as it is, because published prompts differ in line breaks.
    """
    try:
        text = Path(path).read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        what = error.strerror if isinstance(error, OSError) else f"not UTF-8 text ({error})"
        raise Code.PROMPT_FILE.error(
            f"{key}: {path}: {what}; expected a UTF-8 text file with the instructions"
        ) from error
    if not text.strip():
        raise Code.PROMPT_FILE.error(
            f"{key}: {path} is empty; expected the instructions, or null for those of the project"
        )
    return text


def no_longer_than(limit: int | None, splits: dict[str, list[Problem]]) -> dict[str, list[Problem]]:
    """Return the first `limit` problems of each split; all without a limit."""
    return {name: problems[:limit] for name, problems in splits.items()}
