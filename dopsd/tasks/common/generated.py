"""Tasks whose problems a library makes, at any difficulty, and whose answers it scores."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from pydantic import Field

from dopsd.core.errors import Code
from dopsd.core.fingerprint import key_from
from dopsd.core.metrics import Metric
from dopsd.core.progress import Progress
from dopsd.core.settings import Count, PositiveShare, Whole
from dopsd.core.types import Problem, Score
from dopsd.tasks.common.answers import SCORED_BY, UNKNOWN
from dopsd.tasks.common.asking import no_longer_than
from dopsd.tasks.common.config import TaskConfig
from dopsd.tasks.common.formats import AnswerFormat, Formats, FormattedTask, written
from dopsd.tasks.common.rows import new_problem
from dopsd.tasks.common.storage import DATA

SPLITS = ("test", "validation", "train")  # a question that two would have is in the first of these
DRAWS = 5  # problems that are made at most, for each that is wanted
INSTRUCTIONS = "Give the final answer, and nothing else, inside <answer></answer>."
METRICS = {
    "partial": Metric(
        "share",
        "mean score of the library, also where `graded: false` counts right or wrong",
        "dopsd.tasks.common.generated.GeneratedTask.verify",
        "the mean score of the library, partial credit included",
    ),
}


@dataclass(frozen=True)
class Made:
    """A problem as a library makes it."""

    question: str
    answer: str  # an answer with full marks
    solution: str | None = None  # reasoning before the answer; None: the library has none
    row: dict[str, Any] = field(default_factory=dict)  # what the library needs to score, as JSON


class ProblemMaker(Protocol):
    """A library of problems with their own scorers."""

    identity: str  # all that decides problems and scores: library, version, dataset, settings

    def generate(self, seed: int, count: int) -> Iterator[Made]:
        """Make so many problems, the same ones for the same seed; questions may repeat."""

    def score(self, problem: Problem, answer: str) -> float:
        """Return the score of an answer, from 0 to 1; `problem.extra["row"]` has the row."""


class GeneratedTaskConfig(TaskConfig):
    """Settings of tasks that a library makes: sizes, answers, and what is right."""

    train: Count = 1024  # training problems
    validation: Count = 128  # validation problems
    test: Count = 256  # test problems
    seed: Whole = 0  # seed of the problems; each split draws with one of its own
    instructions: str | None = None  # text before the problem, in prompt_style instructions
    answer_format: Formats = Field([AnswerFormat(tag="answer")])  # the first that occurs counts
    threshold: PositiveShare = 1.0  # an answer is right from this score of the library on
    graded: bool = False  # true: partial scores count; false: an answer is right or wrong
    has_gold_answers: ClassVar[bool] = True

    @property
    def is_graded(self) -> bool:
        """Whether scores may be partial."""
        return self.graded

    @property
    def texts(self) -> list[str]:
        """The keys that are set and hold text around the problem."""
        return super().texts + (["instructions"] if self.instructions else [])


class GeneratedTask(FormattedTask):
    """A task whose problems a library makes and scores."""

    config: GeneratedTaskConfig

    def __init__(self, name: str, config: GeneratedTaskConfig, maker: ProblemMaker) -> None:
        self.name, self.key, self.maker = name, f"data.{name}", maker
        self.instructions = INSTRUCTIONS if config.instructions is None else config.instructions
        self.answer_format = config.answer_format
        super().__init__(config)
        self.graded = config.graded
        decisive = config.model_dump(include={"answer_format", "threshold", "graded", "seed"})
        self.scored_by = hashlib.sha256(f"{maker.identity} {decisive}".encode()).hexdigest()[:16]

    def build(self) -> dict[str, list[Problem]]:
        """Return train, validation and test; no question is in two of them."""
        taken: set[str] = set()
        splits = {split: list(self._drawn(split, taken)) for split in SPLITS}
        return no_longer_than(self.config.limit, {name: splits[name] for name in SPLITS[::-1]})

    def _drawn(self, split: str, taken: set[str]) -> Iterator[Problem]:
        """Yield the problems of a split, whose questions are not taken yet."""
        count = min(vars(self.config)[split], self.config.limit or vars(self.config)[split])
        seed = key_from("problems", self.name, split, self.config.seed) % 2**31
        found = 0
        with Progress(f"prepare {self.name} {split}", count, "problem") as progress:
            for made in self.maker.generate(seed, DRAWS * count):
                question = " ".join(made.question.split())
                if question not in taken:
                    taken.add(question)
                    yield self.problem_of(made)
                    progress.step(1)
                    found += 1
                if found == count:
                    return
        raise Code.TOO_FEW_PROBLEMS.error(
            f"{self.key}.{split}: found only {found} other questions of {count} in"
            f" {DRAWS * count} draws; ask for fewer, or change the dataset's config"
        )

    def problem_of(self, made: Made) -> Problem:
        """Return a problem that the library made, with its answer laid out as the solution."""
        answer = self.laid_out(made.answer) or made.answer
        solution = f"{made.solution}\n{answer}" if made.solution else answer
        extra = {SCORED_BY: self.scored_by, "row": made.row}
        return new_problem(self.name, made.question, made.answer, solution, **extra)

    def laid_out(self, answer: str) -> str | None:
        """Return the shortest generation with an answer; None where only patterns find answers."""
        texts = (written(answer, answer_format) for answer_format in self.answer_format)
        return next((text for text in texts if text is not None), None)

    def fault(self, problem: Problem) -> str | None:
        """Return what a problem on disk should have, and what was found; None if it is sound."""
        found = problem.extra.get(SCORED_BY)
        if found == self.scored_by:
            return None
        return (
            f"{SCORED_BY} {self.scored_by}, found {str(found)[:20]!r}: {self.key} or its library"
            f" changed since; run `dopsd prepare --task {self.name}`"
        )

    def of_generation(self, question: str, ground_truth: object) -> Problem:
        """Return the prepared problem with this question: only the library knows others."""
        paths = [DATA / self.name / f"{split}.jsonl" for split in SPLITS]
        known = (p for path in paths if path.is_file() for p in self.load(path.stem))
        problem = next((p for p in known if p.prompt == question), None)
        if problem is None:
            raise Code.GENERATIONS_ROW.error(
                f"no problem of {self.name} on disk has the question {question[:40]!r}"
            )
        return problem

    def verify(self, problem: Problem, text: str) -> Score:
        """Return the answer in a generation, and its score by the library: partial, or 1 or 0."""
        score = super().verify(problem, text)
        right = {name: float(v >= self.config.threshold) for name, v in score.figures.items()}
        figures = score.figures if self.graded else right
        is_right = bool(right[self.config.scoring])
        value = score.score if self.graded else float(is_right)
        return Score(score.answer, value, is_right, figures | {"partial": score.score})

    def score(self, problem: Problem, answer: str | None) -> float:
        """Return the library's score of an answer; 0 for none, and for a typed question."""
        if answer is None or problem.answer == UNKNOWN:
            return 0.0
        return self.maker.score(problem, answer)
