"""A task that params.yaml defines: rows, a prompt, an answer format and a verifier.

published: the first of `answer_format` that a generation has counts. strict: only the first of
them.
"""

import json
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from dopsd.core.errors import Code, DopsdError
from dopsd.core.progress import is_main_rank, log
from dopsd.core.types import Problem
from dopsd.tasks.common.answers import SCORED_BY, UNKNOWN
from dopsd.tasks.common.asking import no_longer_than
from dopsd.tasks.common.formats import FormattedTask
from dopsd.tasks.common.rows import held_out, named_apart, new_problem
from dopsd.tasks.common.sources import Row, each, read_rows
from dopsd.tasks.common.storage import DATA, as_lines
from dopsd.tasks.custom.config import CustomTaskConfig
from dopsd.tasks.custom.rows import RowReader, as_text
from dopsd.tasks.custom.verifiers.command import mathematics, verifier_command
from dopsd.tasks.custom.verifiers.config import VerifierConfig
from dopsd.tasks.custom.verifiers.json_schema import JsonSchema
from dopsd.tasks.custom.verifiers.python_tests import PythonTests
from dopsd.tasks.custom.verifiers.texts import Choice, Exact, Number, Pattern

SPLITS = ("test", "validation", "train")  # a row of two splits stays in the first of these


class CustomTask(FormattedTask):
    """A task of the user's own."""

    config: CustomTaskConfig

    def __init__(self, name: str, config: CustomTaskConfig) -> None:
        self.name, self.key = name, f"data.{name}"
        self.instructions, self.answer_format = config.instructions or "", config.answer_format
        super().__init__(config)
        self.graded = config.verifier.is_graded
        self.rows = RowReader(self.key, config)
        self.verifier = make_verifier(f"{self.key}.verifier", config.verifier)

    def problem_of(self, row: Row) -> Problem:
        """Return the problem of a row."""
        answer = self.rows.answer(row)
        if fault := self.verifier.fault(answer):
            raise Code.SOURCE_ROW.error(
                f"{row.place}: the answer must be {fault} for {self.key}.verifier, found"
                f" {answer[:60]!r}; mend the row, or change the verifier"
            )
        prompt, solution = self.rows.prompt(row), self.rows.solution(row)
        return new_problem(self.name, prompt, answer, solution, **self.rows.extra(row))

    def read(self, split: str) -> Iterator[tuple[Row, Problem]]:
        """Return the rows of a split that has a source, with their problems."""
        rows = read_rows(self.config.sources[split], f"{self.key}.{split}.path")
        return each(rows, self.problem_of)

    def load(self, split: str) -> list[Problem]:
        """Read the problems of a split from disk; warn where its rows changed since."""
        warn_if_changed(self, split, DATA / self.name / f"{split}.jsonl")
        return super().load(split)

    def identity(self, problem: Problem) -> str:
        """Return a key that is equal for equal questions: words without regard to case."""
        return _words(problem.prompt)

    def build(self) -> dict[str, list[Problem]]:
        """Return the problems of train, validation and test; no question is in two of them."""
        problems = {name: [p for _, p in self.read(name)] for name in self.config.sources}
        for name, rows in problems.items():
            if not rows:
                raise Code.TOO_FEW_PROBLEMS.error(
                    f"{self.key}.{name}.path: {self.config.sources[name].path}: no rows; expected"
                    " at least one"
                )
        splits = self._held_out(self._distinct(problems))
        return no_longer_than(self.config.limit, {name: splits[name] for name in SPLITS[::-1]})

    def _distinct(self, problems: dict[str, list[Problem]]) -> dict[str, list[Problem]]:
        """Drop rows that are also in a split before theirs, and repeated ones of train."""
        taken: set[str] = set()
        distinct: dict[str, list[Problem]] = {}
        for name in (name for name in SPLITS if name in problems):
            kept = [(self.identity(p), p) for p in problems[name]]
            kept = [(identity, p) for identity, p in kept if identity not in taken]
            if name == "train":
                kept = list({identity: (identity, p) for identity, p in reversed(kept)}.values())
                kept.reverse()
            if dropped := len(problems[name]) - len(kept):
                log(f"{self.name}: dropped {dropped} rows of {name} that are in another row too")
            taken |= {identity for identity, _ in kept}
            distinct[name] = named_apart([p for _, p in kept])
        return distinct

    def _held_out(self, splits: dict[str, list[Problem]]) -> dict[str, list[Problem]]:
        """Draw the splits that are numbers from train: test, then validation."""
        c, train = self.config, splits["train"]
        counts = {n: value for n in ("test", "validation") if isinstance(value := vars(c)[n], int)}
        if len(train) <= sum(counts.values()):
            asked = " and ".join(f"{n} {value}" for n, value in counts.items())
            raise Code.TOO_FEW_PROBLEMS.error(
                f"{self.key}: {asked} cannot be held out of {len(train)} problems, since none would"
                " be left for training; ask for fewer, or name a larger train source"
            )
        for name, count in counts.items():
            train, splits[name] = held_out(train, count, c.seed, self.name, name)
        return splits | {"train": train}

    def fault(self, problem: Problem) -> str | None:
        """Return what a problem on disk should have, and what was found; None if it is sound."""
        scored_by = problem.extra.get(SCORED_BY)
        if scored_by != self.rows.scored_by:
            return (
                f"{SCORED_BY} {self.rows.scored_by}, found {str(scored_by)[:20]!r}:"
                f" {self.key}.verifier or answer_format changed since; run `dopsd prepare --task"
                f" {self.name}`"
            )
        return self.verifier.fault(problem.answer)

    def of_generation(self, question: str, ground_truth: object) -> Problem:
        """Return the problem of a row in a file of generations; ground truth is a text or JSON.

        Where the verifier reads columns, it is the problem of the question's row. Otherwise every
        answer scores 0 without a ground truth (null).
        """
        answer = (as_text(ground_truth, self.rows.decimal) or "").strip()
        if self.rows.row_columns:
            return self.of_row(question, None if ground_truth is None else answer)
        if ground_truth is None:
            return new_problem(self.name, question, UNKNOWN)
        if expected := self.verifier.fault(answer) if answer else "an answer":
            raise Code.GENERATIONS_ROW.error(
                f"expected {expected} as ground_truth, found {answer[:40]!r}"
            )
        return new_problem(self.name, question, answer)

    def of_row(self, question: str | None, answer: str | None) -> Problem:
        """Return the problem of the row with this question and this answer.

        Args:
            question: the cell or the prompt; None: any.
            answer: the row's answer; None: any.
        """
        if question is None:
            asked = [pair for pairs in self.known.values() for pair in pairs]
        else:
            alike = self.known.get(_words(question), [])
            asked = [pair for pair in alike if question in pair[0]] or alike
        same = [p for _, p in asked if answer is None or p.answer == answer]
        distinct = {json.dumps([p.prompt, p.answer, p.extra]): p for p in same}
        if len(distinct) == 1:
            return same[0]
        what = f"the question {question[:40]!r}" if question else f"the answer {str(answer)[:40]!r}"
        fault = f"{len(distinct) or 'no'} rows of {self.name} have {what}; the verifier needs one"
        if asked and not same:
            gold = asked[0][1].answer
            fault = f"{what} has the answer {gold[:40]!r} in its row, not {str(answer)[:40]!r}"
        raise Code.GENERATIONS_ROW.error(fault)

    @cached_property
    def known(self) -> dict[str, list[tuple[set[str], Problem]]]:
        """The problems that `prepare` keeps, with cell and prompt of the question, by its words."""
        found: dict[str, list[tuple[set[str], Problem]]] = {}
        taken: dict[str, str] = {}  # the split of a question
        for split in (name for name in SPLITS if name in self.config.sources):
            for row, problem in self.read(split):
                identity = self.identity(problem)
                is_repeated = identity in taken and (split == "train" or taken[identity] != split)
                taken.setdefault(identity, split)
                if is_repeated:
                    continue
                texts = {str(row.values.get(self.config.question)), problem.prompt}
                for words in {_words(text) for text in texts}:
                    found.setdefault(words, []).append((texts, problem))
        return found

    def score(self, problem: Problem, answer: str | None) -> float:
        """Return the verifier's score of an answer; 0 for none, and without a gold answer."""
        if answer is None or problem.answer == UNKNOWN:
            return 0.0
        return self.verifier.score(problem, answer)


def _words(text: str) -> str:
    return " ".join(text.casefold().split())


def make(config: CustomTaskConfig, task: str) -> CustomTask:
    """Return the task of this name with its settings."""
    return CustomTask(task, config)


def warn_if_changed(task: CustomTask, split: str, prepared: Path) -> None:
    """Log one line if a file of rows is newer than a split's problems, and gives other problems.

    A file that is older than the problems is not read, so this costs nothing where nothing changed.
    """
    sources = [Path(source.path) for source in task.config.sources.values()]
    if not is_main_rank() or not prepared.is_file() or not all(p.is_file() for p in sources):
        return
    newer = [p for p in sources if p.stat().st_mtime > prepared.stat().st_mtime]
    if newer and _differs(task, split, prepared):
        log(
            f"warning: {', '.join(map(str, newer))} changed since `dopsd prepare --task"
            f" {task.name}`, and {prepared} has the old problems; run it, or `dopsd repro`"
        )


def _differs(task: CustomTask, split: str, prepared: Path) -> bool:
    try:
        return as_lines(task.build()[split]) != prepared.read_text(encoding="utf-8")
    except (DopsdError, UnicodeDecodeError):  # prepare or the reader names the fault
        return True


class Verifier(Protocol):
    """Scores an answer against a problem's own."""

    def fault(self, answer: str) -> str | None:
        """Return what a row's answer should be; None if it is sound."""

    def score(self, problem: Problem, answer: str) -> float:
        """Return the score of an answer that was found in a generation, from 0 to 1."""


MAKERS: dict[str, Callable[[str, Any], Verifier]] = {
    "exact": lambda _, config: Exact(config),
    "number": lambda _, config: Number(config),
    "choice": lambda _, config: Choice(config),
    "regex": lambda _, config: Pattern(config),
    "math": mathematics,
    "json_schema": JsonSchema,
    "command": verifier_command,
    "python_tests": PythonTests,
}


def make_verifier(key: str, config: VerifierConfig) -> Verifier:
    """Return the verifier of a section."""
    return MAKERS[config.type](key, config)
