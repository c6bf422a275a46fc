"""What every task does alike: put its question to a model, read its splits, and keep to
`data.TASK.limit`.
"""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING

from dopsd.core.errors import DopsdError
from dopsd.tasks.common.storage import DATA, read_problems

if TYPE_CHECKING:
    from dopsd.core.types import Problem, Score
    from dopsd.tasks.common.config import TaskConfig

PLACE = "{question}"


class AskingTask:
    """Base of the tasks; a task adds its name, instructions, build, fault and verify.

    Style `compact` is the question alone, `instructions` (of the task, or of `prompt_file`)
    explains it to a model.
    """

    name: str
    graded = False
    instructions: str

    def __init__(self, config: TaskConfig) -> None:
        self.config, self.scoring = config, config.scoring
        self.has_own_prompt = config.prompt_file is not None
        if config.prompt_file is not None:
            self.instructions = read_prompt(f"data.{self.name}.prompt_file", config.prompt_file)

    @abstractmethod
    def fault(self, problem: Problem) -> str | None:
        """Return what was expected of a problem on disk and is not there, or None."""

    @abstractmethod
    def verify(self, problem: Problem, text: str) -> Score:
        """Return the answer that a text gives, and its score."""

    def load(self, split: str) -> list[Problem]:
        return read_problems(DATA / self.name / f"{split}.jsonl", self.fault)

    def question(self, problem: Problem) -> str:
        """The problem as it follows a prompt of one's own; tasks whose published question has words
        add them.
        """
        return problem.prompt

    def instructed(self, problem: Problem) -> str:
        return f"{self.instructions}\n\n{problem.prompt}"

    def messages(self, problem: Problem, style: str) -> list[dict[str, str]]:
        if style == "compact":
            text = problem.prompt
        elif self.has_own_prompt:
            text = fill(self.instructions, self.question(problem))
        else:
            text = self.instructed(problem)
        return [{"role": "user", "content": text}]

    def ground_truth(self, problem: Problem) -> object:
        """The gold answer as files of generations have it; `of_generation` reads it."""
        return problem.answer

    def reward(self, problem: Problem, text: str) -> float:
        return self.verify(problem, text).score


def fill(prompt: str, question: str) -> str:
    """The question in its place in the prompt, or after it and a blank line."""
    return prompt.replace(PLACE, question) if PLACE in prompt else f"{prompt}\n\n{question}"


def read_prompt(key: str, path: str) -> str:
    """Text of a prompt file, kept to the byte: the published prompts differ by line breaks."""
    try:
        text = Path(path).read_bytes().decode()
    except OSError as error:
        raise DopsdError(
            f"{key}: {path}: {error.strerror}; expected a text file with the instructions"
        ) from error
    except UnicodeDecodeError as error:
        raise DopsdError(f"{key}: {path}: not a text in UTF-8 ({error})") from error
    if not text.strip():
        raise DopsdError(
            f"{key}: {path} is empty; expected the instructions, or null for those of the project"
        )
    return text


def no_longer_than(limit: int | None, splits: dict[str, list[Problem]]) -> dict[str, list[Problem]]:
    """The first `limit` problems of each split."""
    return {name: problems[:limit] for name, problems in splits.items()}
