"""`dopsd task check NAME` and `dopsd task list`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy
from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text

from dopsd.config.consistency import task_files
from dopsd.config.named_files import not_there
from dopsd.core.errors import Code, unknown
from dopsd.core.progress import table_console
from dopsd.models.tokenizer import TokenCounts, token_counts
from dopsd.pipeline.task_check import library
from dopsd.pipeline.task_check.rows import (
    SHOWN,
    Findings,
    Located,
    check_file,
    check_others,
    check_points,
    check_references,
    check_solutions,
    check_splits,
    read,
    shortest,
)
from dopsd.tasks.common.asking import AskingTask
from dopsd.tasks.common.config import Source, TaskConfig
from dopsd.tasks.common.generated import GeneratedTask
from dopsd.tasks.common.storage import DATA
from dopsd.tasks.custom.config import CustomTaskConfig
from dopsd.tasks.custom.task import CustomTask
from dopsd.tasks.registry import GYM, load_task, type_of

if TYPE_CHECKING:
    from dopsd.config.params import Params

SPLITS = ("train", "validation", "test")


def check(params: Params, name: str, answers_file: Path | None) -> None:
    """Print what a task's rows look like to a model and its verifier, with a verdict.

    Args:
        name: A task that section data defines.
        answers_file: A file of answers to score too; None: none.
    """
    params = params.model_copy(update={"data": params.data.with_named(name)})
    config = params.data.custom.get(name)
    if config is None:
        names = list(params.data.custom) or ["none yet; docs/own-task.md shows how to add one"]
        raise Code.UNKNOWN_NAME.error(unknown(f"task check {name}", names))
    if lines := not_there(task_files(params, name)):
        raise Code.NAMED_FILE_MISSING.error([f"{line}: no such file" for line in lines])
    task, findings = load_task(name, config), Findings()
    if isinstance(task, GeneratedTask):
        rows = library.problems_of(task)
        answers = [row.problem.answer for row in rows]
        texts = [task.laid_out(answer) or answer for answer in answers]
        Lengths(params, task, rows).check(texts, findings)
        library.check_answers(task, rows, findings)
    elif isinstance(task, CustomTask):
        _check_rows(params, task, answers_file, findings)
    sys.stdout.write("\n".join(findings.lines[1:]) + "\n\n")
    if findings.faults:
        raise Code.NOT_TRAINABLE.error(
            [f"{name}: cannot be trained: {fault}" for fault in findings.faults]
        )
    sys.stdout.write(
        f"{name}: the rows, prompts and verifier fit; whether the base can answer: `dopsd prepare"
        f" --task {name}`, then `dopsd evaluate-base --task {name}`\n"
    )


def _check_rows(
    params: Params, task: CustomTask, answers_file: Path | None, findings: Findings
) -> None:
    """Check a task of rows of a file or of the hub."""
    rows = read(task)
    texts = [shortest(task, row.problem.answer) for row in rows]
    Lengths(params, task, rows).check(texts, findings)
    check_splits(task, rows, findings)
    check_references(task, rows, findings)
    check_points(task, rows, findings)
    check_others(task, rows, findings)
    check_solutions(task, rows, findings)
    if answers_file:
        check_file(task, answers_file, findings)


def list_tasks(params: Params) -> None:
    """Print a table of all tasks: where they come from, their problems, how they are scored."""
    table = Table("task", "type", "source", *SPLITS, "verifier", box=SIMPLE)
    for name, config in params.data.tasks.items():
        kind = type_of(name) or "built in"
        verifier = config.verifier.type if isinstance(config, CustomTaskConfig) else "its own"
        sizes = [_size(name, config, split) for split in SPLITS]
        source = vars(config).get("train")
        path = source.path if isinstance(source, Source) else vars(config).get("dataset")
        path = path or "made by dopsd"
        table.add_row(Text(name), kind, Text(path), *sizes, verifier)
    table_console().print(table)
    table_console().print(f"{GYM}: `dopsd task list {GYM}` shows over a hundred more, by name")


def _size(name: str, config: TaskConfig, split: str) -> str:
    """Return the number of prepared problems, else the number that is set, else a dash."""
    path = DATA / name / f"{split}.jsonl"
    if path.is_file():
        return str(len(path.read_bytes().splitlines()))
    value = vars(config)[split]
    return f"{value}" if isinstance(value, int) else "-"


PROMPTS = 3  # to show
Chat = list[dict[str, str]]


class Lengths:
    """Prompts and answers of a task's rows as the model of its settings tokenises them."""

    def __init__(self, params: Params, task: AskingTask, rows: list[Located]) -> None:
        self.sampling, self.task, self.rows = params.sampling, task, rows
        self.model = params.model_of(task.name)
        self.tokens = token_counts(Path(self.model.path))

    def check(self, answers: Sequence[str], findings: Findings) -> None:
        """Show prompts, and report lengths and what does not fit."""
        chats = [self.task.messages(r.problem, self.model.prompt_style) for r in self.rows]
        prompts = self._prompts(chats[:PROMPTS])
        findings.head(f"The first {PROMPTS} prompts, as the model gets them")
        for prompt in prompts:
            findings.add(*prompt.split("\n"), "--")
        if self.tokens is None:
            findings.add(f"{self.model.path}: no model there yet, so lengths are not checked")
            return
        findings.head(f"Tokens, by the tokenizer of {self.model.path}")
        self._check_prompts(self.tokens, chats, findings)
        self._check_questions(self.tokens, findings)
        self._check_special(self.tokens, findings)
        self._check_answers(self.tokens, answers, findings)
        self._check_characters(self.tokens, answers, findings)

    def _prompts(self, chats: Sequence[Chat]) -> list[str]:
        if self.tokens is None:
            return [chat[-1]["content"] for chat in chats]
        return [self.tokens.prompt(chat, self.sampling.prefill) for chat in chats]

    def _check_prompts(
        self, tokens: TokenCounts, chats: Sequence[Chat], findings: Findings
    ) -> None:
        counts = [len(tokens.plain.chat(chat, self.sampling.prefill)) for chat in chats]
        kept = self.sampling.max_prompt_tokens
        findings.add(f"prompts: {spread(counts)}")
        if kept is not None:
            findings.add(f"{_share(counts, kept)} are cut to sampling.max_prompt_tokens {kept}")
        totals = [min(n, kept or n) + self.sampling.gen_length for n in counts]
        excess = f"{_share(totals, tokens.longest)} exceed the model's {tokens.longest} tokens"
        findings.add(f"{excess} together with sampling.gen_length {self.sampling.gen_length}")
        if max(totals) > tokens.longest:
            findings.faults.append(
                f"prompts: {excess} with an answer; lower sampling.gen_length, set"
                " sampling.max_prompt_tokens, or remove the rows"
            )

    def _check_questions(self, tokens: TokenCounts, findings: Findings) -> None:
        """Report prompts of which the model does not see every character."""
        lost = [row for row in self.rows if not tokens.is_written(row.problem.prompt)]
        if lost:
            letters = sorted(c for c in {*lost[0].problem.prompt} if not tokens.is_written(c))
            example = f" ({' '.join(letters[:SHOWN])})" if letters else ""
            findings.add(
                f"{len(lost)} of {len(self.rows)} prompts have characters without a token, such as"
                f" {lost[0].place}{example}: the model"
                " does not see them"
            )

    def _check_special(self, tokens: TokenCounts, findings: Findings) -> None:
        """Count rows with the text of a special token, of which the model gets the characters."""
        problems = [(row.place, row.problem) for row in self.rows]
        found = [
            f"{place} ({text})"
            for place, p in problems
            if (text := tokens.plain.special(f"{p.prompt} {p.answer} {p.reference or ''}"))
        ]
        if found:
            findings.add(
                f"{len(found)} of {len(self.rows)} rows have the text of a special token, such as"
                f" {found[0]}: the model gets its characters, and not the token"
            )

    def _check_answers(
        self, tokens: TokenCounts, answers: Sequence[str], findings: Findings
    ) -> None:
        counts, length = tokens.counts(answers), self.sampling.gen_length
        excess = f"{_share(counts, length)} do not fit in sampling.gen_length {length}"
        findings.add(f"shortest right generations: {spread(counts)}", excess)
        if 2 * sum(n > length for n in counts) > len(counts):
            findings.faults.append(f"answers: {excess}; raise it")

    def _check_characters(
        self, tokens: TokenCounts, answers: Sequence[str], findings: Findings
    ) -> None:
        """Report answers that the tokenizer cannot write."""
        pairs = zip(self.rows, answers, strict=True)
        lost = [row.place for row, text in pairs if not tokens.is_written(text)]
        if not lost:
            return
        excess = f"{len(lost)} of {len(answers)} answers have characters without a token"
        line = f"{excess}, such as {lost[0]}"
        findings.add(line)
        if 2 * len(lost) > len(answers):
            findings.faults.append(f"{line}; choose another base than {self.model.path}")


def spread(counts: Sequence[int]) -> str:
    """Return median, 95th percentile and maximum."""
    median, high = numpy.percentile(counts, [50, 95])
    return f"median {median:.0f}, 95% up to {high:.0f}, longest {max(counts)}"


def _share(counts: Sequence[int], limit: int) -> str:
    """Return how many counts exceed a limit, with their share."""
    over = sum(n > limit for n in counts)
    return f"{over} of {len(counts)} ({over / len(counts):.1%})"
