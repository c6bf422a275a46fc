"""Tasks whose problems are rows of a dataset.

Test stays as given. Train loses the rows that are also in test, and validation is held out of it.
"""

from __future__ import annotations

import hashlib
import random
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from dopsd.core.errors import Code
from dopsd.core.fingerprint import key_from
from dopsd.core.progress import log
from dopsd.core.types import Problem
from dopsd.tasks.common.answers import UNKNOWN
from dopsd.tasks.common.asking import AskingTask, no_longer_than
from dopsd.tasks.common.sources import Row, read_rows

if TYPE_CHECKING:
    from dopsd.tasks.common.config import RowTaskConfig


def new_problem(
    task: str, prompt: str, answer: str, reference: str | None = None, **extra: object
) -> Problem:
    """Return a problem whose id is a digest of its prompt, whatever file it comes from."""
    digest = hashlib.blake2b(prompt.encode("utf-8", "replace"), digest_size=8).hexdigest()
    return Problem(f"{task}-{digest}", prompt, answer, reference, extra)


class RowTask(AskingTask):
    """Base class of tasks over rows.

    A task adds `problem_of`, and `identity` if two prompts can be the same question.
    """

    config: RowTaskConfig

    @property
    def wanted(self) -> str:
        """What `is_wanted` asks for, for messages."""
        return "problem"

    @abstractmethod
    def problem_of(self, row: Row) -> Problem:
        """Return the problem that a row of the dataset holds."""

    def is_wanted(self, problem: Problem) -> bool:
        """Return whether the problem belongs to the task; by default all do."""
        return True

    def identity(self, problem: Problem) -> Hashable:
        """Return a key that is equal for equal problems: by default the words of the prompt."""
        return " ".join(problem.prompt.split())

    def ask(self, text: str) -> Problem:
        """Return the problem of a question that a person typed, without a gold answer."""
        return new_problem(self.name, text, UNKNOWN)

    def read(self, split: str) -> list[Problem]:
        """Return the problems of data.TASK.train or data.TASK.test."""
        key = f"data.{self.name}.{split}.path"
        source = {"train": self.config.train, "test": self.config.test}[split]
        problems = [
            p for row in read_rows(source, key) if self.is_wanted(p := self.problem_of(row))
        ]
        if not problems:
            raise Code.TOO_FEW_PROBLEMS.error(
                f"{key}: {source.path}: no usable row; expected at least one {self.wanted}"
            )
        return problems

    def training(self, taken: set[Hashable]) -> list[Problem]:
        """Return the training problems, without those whose identity is in `taken`."""
        return without(self.read("train"), taken, self)

    def build(self) -> dict[str, list[Problem]]:
        """Return the problems of train, validation and test."""
        c = self.config
        test = self.read("test")
        train = self.training({self.identity(p) for p in test})
        train, validation = held_out(train, c.validation, c.seed, self.name)
        return no_longer_than(
            c.limit, {"train": train, "validation": validation, "test": named_apart(test)}
        )


def without(problems: Iterable[Problem], taken: set[Hashable], task: RowTask) -> list[Problem]:
    """Return distinct problems that are not taken, and log how many were dropped."""
    distinct: dict[Hashable, Problem] = {}
    in_test = repeated = 0
    for problem in problems:
        identity = task.identity(problem)
        in_test += identity in taken
        repeated += identity in distinct
        if identity not in taken:
            distinct.setdefault(identity, problem)
    if in_test or repeated:
        log(
            f"{task.name}: dropped from train {in_test} rows that are also in test and {repeated}"
            " repeated ones"
        )
    return list(distinct.values())


def held_out(
    problems: list[Problem], count: int, seed: int, task: str, split: str = "validation"
) -> tuple[list[Problem], list[Problem]]:
    """Split off a set of problems.

    Args:
        split: name of the set, a key of the task's section.

    Returns:
        train in the given order, and the others in the order drawn.
    """
    if len(problems) <= count:
        raise Code.TOO_FEW_PROBLEMS.error(
            f"data.{task}.{split}: {count} problems cannot be held out of {len(problems)} for"
            " training; ask for fewer, or name a larger train source"
        )
    indices = random.Random(key_from(split, task, seed)).sample(range(len(problems)), count)
    chosen = set(indices)
    return [p for i, p in enumerate(problems) if i not in chosen], [problems[i] for i in indices]


def named_apart(problems: list[Problem]) -> list[Problem]:
    """Return the test problems with distinct ids.

    Repeated rows stay: the second of an id gets the suffix `-2`.
    """
    seen: Counter[str] = Counter()
    renamed = []
    for p in problems:
        seen[p.id] += 1
        renamed.append(p if seen[p.id] == 1 else replace(p, id=f"{p.id}-{seen[p.id]}"))
    return renamed


FRUITLESS = 20_000  # draws in a row without a new problem before giving up


def stream(task: str, split: str, seed: int) -> random.Random:
    """Return the random numbers that a split is drawn with."""
    return random.Random(key_from("problems", task, split, seed))


def split_of(task: str, group: str, seed: int) -> str:
    """Return the split of all problems of a group: an eighth each for validation and test."""
    share = key_from("split", task, group, seed) % 8
    return {0: "test", 1: "validation"}.get(share, "train")


def draw(
    stream: random.Random,
    count: int,
    make: Callable[[random.Random], Problem | None],
    identity: Callable[[Problem], Hashable],
    too_few: str,
) -> list[Problem]:
    """Draw distinct problems.

    Args:
        make: makes a problem; None: draw again.
        too_few: the message if there are fewer, with {found} and {count}.
    """
    problems: dict[Hashable, Problem] = {}
    fruitless = 0
    while len(problems) < count and fruitless < FRUITLESS:
        problem, before = make(stream), len(problems)
        if problem:
            problems.setdefault(identity(problem), problem)
        fruitless = 0 if len(problems) > before else fruitless + 1
    if len(problems) == count:
        return list(problems.values())
    raise Code.TOO_FEW_PROBLEMS.error(too_few.format(found=len(problems), count=count))
