"""Problems on disk: one JSON object per line."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from dopsd.core.errors import Code, is_unicode
from dopsd.core.files import write_atomically
from dopsd.core.progress import log
from dopsd.core.statistics import few
from dopsd.core.types import Problem
from dopsd.tasks.common.task import Task


def data_files(task: str, *splits: str) -> list[Path]:
    """Return the files of these splits, and of the instructions that ask them."""
    return [DATA / task / name for name in (*(f"{split}.jsonl" for split in splits), PROMPT)]


DATA = Path("data")
PROMPT = "prompt.txt"  # next to a task's problems: the instructions that ask them


def write_problems(path: Path, problems: list[Problem]) -> None:
    """Write the problems of a split, atomically."""
    write_atomically(path, as_lines(problems))


def as_lines(problems: list[Problem]) -> str:
    """Return the problems as JSON, one a line."""
    return "".join(json.dumps(asdict(problem), sort_keys=True) + "\n" for problem in problems)


def write_prompt(path: Path, text: str) -> None:
    """Write the instructions of a task, atomically; none is one empty line.

    DVC warns of an empty file each time that it looks at it.
    """
    write_atomically(path, text or "\n")


def write_splits(task: Task) -> None:
    """Write the problems of every split, and the task's instructions, to data/<task>/."""
    for split, problems in task.build().items():
        write_problems(DATA / task.name / f"{split}.jsonl", problems)
        answers = Counter(problem.answer for problem in problems)
        log(f"{task.name}: {len(problems)} {split} problems, {len(answers)} distinct answers")
        lines = few(len(problems), "test problems")
        for answer, n in answers.most_common(1):
            said = f"{n} of {len(problems)} test problems have the answer {answer[:40]!r}"
            is_common = n > max(1, len(problems) / 4)  # a model may learn to say it alone
            lines += [f"{said}: that alone is right on {n / len(problems):.0%}"] * is_common
        for line in lines if split == "test" else ():
            log(f"{task.name}: {line}")
    write_prompt(DATA / task.name / PROMPT, task.instructions)


def read_problems(path: Path, fault: Callable[[Problem], str | None]) -> list[Problem]:
    """Read the problems of a split.

    Args:
        fault: the task's own check, which returns what is wrong with a problem, or None.
    """
    if not path.is_file():
        raise Code.NOT_PREPARED.error(
            f"{path}: no such file; run `dopsd prepare --task {path.parent.name}` (or `dvc repro`)"
            " first"
        )
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise Code.PREPARED_DAMAGED.error(
            f"{path}: not UTF-8 text ({error}); run `dvc checkout --force {path}` to restore the"
            " file"
        ) from error
    problems = [_read(path, number, line) for number, line in enumerate(lines, 1)]
    for number, problem in enumerate(problems, 1):
        expected = fault(problem)
        if expected:
            raise Code.PREPARED_DAMAGED.error(f"{path}:{number}: expected {expected}")
    return problems


def _read(path: Path, number: int, line: str) -> Problem:
    try:
        problem = Problem(**json.loads(line))
    except (ValueError, TypeError, RecursionError) as error:
        raise Code.PREPARED_DAMAGED.error(
            f"{path}:{number}: expected a problem as one JSON object with id, prompt, answer:"
            f" {error}"
        ) from error
    if not all(isinstance(v, str) and v for v in (problem.id, problem.prompt, problem.answer)):
        raise Code.PREPARED_DAMAGED.error(
            f"{path}:{number}: id, prompt and answer must be non-empty strings"
        )
    if not isinstance(problem.extra, dict):
        raise Code.PREPARED_DAMAGED.error(f"{path}:{number}: extra must be an object")
    if not (problem.reference is None or isinstance(problem.reference, str)):
        raise Code.PREPARED_DAMAGED.error(f"{path}:{number}: reference must be a text or null")
    texts = (problem.id, problem.prompt, problem.answer, problem.reference or "")
    if not all(map(is_unicode, texts)):
        raise Code.PREPARED_DAMAGED.error(
            f"{path}:{number}: an unpaired surrogate in a text, which no tokenizer takes"
        )
    return problem
