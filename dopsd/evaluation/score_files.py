"""`dopsd score --task gsm8k FILE...`: score generations from files, without a model or settings."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text

from dopsd.core.errors import Code, DopsdError, unknown
from dopsd.core.files import rewrite
from dopsd.core.machine import package_version
from dopsd.core.metrics import MetricSums
from dopsd.core.progress import table_console
from dopsd.core.statistics import interval_of
from dopsd.evaluation.config import EvaluateConfig
from dopsd.tasks.common.config import TaskConfig
from dopsd.tasks.common.json_files import DECODER
from dopsd.tasks.common.task import Task
from dopsd.tasks.registry import TASKS, load_task

if TYPE_CHECKING:
    from dopsd.core.types import Problem, Score

RESAMPLES = EvaluateConfig.model_fields["bootstrap"].default


@dataclass(frozen=True)
class Line:
    """One line of the table."""

    file: str
    n: int  # generations
    accuracy: float  # mean score, in [0, 1]
    interval: tuple[float, float]  # 95%
    figures: dict[str, float]  # means of the scorer's other figures, by name


def run(
    task_name: str,
    files: Sequence[Path],
    scoring: str,
    as_json: bool,
    verdicts_path: Path | None,
    config: TaskConfig | None = None,
) -> None:
    """Score files of generations, and print a table or JSON.

    The accuracy is by one scoring rule; the table shows the other rule's share too. All files are
    read before anything is written.

    Args:
        scoring: the rule, published or strict.
        verdicts_path: a file to write one JSON line for each generation to; None: no file.
        config: the settings of a task that params.yaml defines; None: the task's defaults.
    """
    if config is None and task_name not in TASKS.names:
        raise Code.UNKNOWN_NAME.error(unknown(f"--task {task_name}", TASKS.names))
    if verdicts_path:
        check_new(verdicts_path, files)
    config = config or TASKS.config_class(task_name)()
    task = load_task(task_name, config.model_copy(update={"scoring": scoring}))
    generations = [read_generations(path, task) for path in files]
    scores = [
        [task.verify(g.problem, g.text) for g in file_generations]
        for file_generations in generations
    ]
    lines = [
        summarise(str(path), file_scores, task)
        for path, file_scores in zip(files, scores, strict=True)
    ]
    if len(files) > 1:
        lines.append(
            summarise("all", [score for file_scores in scores for score in file_scores], task)
        )
    if verdicts_path:
        write_verdicts(verdicts_path, generations, scores)
    if as_json:
        document = {
            "task": task_name,
            "scoring": scoring,
            "files": [asdict(line) for line in lines],
            "packages": {"dopsd": package_version("dopsd")},
        }
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
    else:
        show(lines, task_name, scoring)


def summarise(file: str, scores: Sequence[Score], task: Task) -> Line:
    """Return the mean score of a file with its 95% interval.

    The interval is a bootstrap over problems for partial scores, and Wilson's for 0/1 scores.
    """
    values = [score.score for score in scores]
    sums = MetricSums()
    for score in scores:
        for name, value in score.figures.items():
            sums.add(name, value)
    interval = interval_of(values, task.graded, RESAMPLES)
    return Line(file, len(values), sum(values) / len(values), interval, sums.means())


def show(lines: Sequence[Line], task_name: str, scoring: str) -> None:
    """Print a table in percent, without a second column for the rule of the accuracy."""
    console = table_console()
    figure_names = [name for name in lines[0].figures if name != scoring]
    table = Table(box=SIMPLE)
    table.add_column("file", overflow="fold")
    for column in (
        "n",
        "accuracy %",
        "95% interval",
        *(f"{name.replace('_', ' ')} %" for name in figure_names),
    ):
        table.add_column(column, justify="right", no_wrap=True)
    for line in lines:
        low, high = line.interval
        figures = [f"{100 * line.figures[name]:.1f}" for name in figure_names]
        table.add_row(
            Text(line.file.encode(errors="replace").decode()),
            str(line.n),
            f"{100 * line.accuracy:.3f}",
            f"{100 * low:.1f} to {100 * high:.1f}",
            *figures,
        )
    console.print(f"{task_name}, scored by the {scoring} rule", markup=False, highlight=False)
    console.print(table)


def check_new(path: Path, files: Sequence[Path]) -> None:
    """Check that an output file is neither a folder nor one of the input files."""
    if path.is_dir() or not path.name:
        raise Code.ARGUMENT.error(f"--verdicts {path}: expected a file name, found a folder")
    if path.is_file() and str(path.parent) in ("/dev", "/dev/fd", "/proc/self/fd"):
        raise Code.ARGUMENT.error(f"--verdicts {path}: is a file under another name; name the file")
    if path.exists() and any(file.exists() and path.samefile(file) for file in files):
        raise Code.OUTPUT_EXISTS.error(
            f"--verdicts {path}: is one of the scored files; name another file"
        )


def write_verdicts(
    path: Path, generations: Sequence[Sequence[Generation]], scores: Sequence[Sequence[Score]]
) -> None:
    """Write one JSON line for each generation: all or none, but to a device or pipe."""
    lines = []
    for file_generations, file_scores in zip(generations, scores, strict=True):
        for g, v in zip(file_generations, file_scores, strict=True):
            row = {
                "file": g.file,
                "row": g.row,
                "question": g.problem.prompt,
                "answer": v.answer,
                "score": v.score,
            }
            lines.append(json.dumps(row | v.figures) + "\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    rewrite(path, "".join(lines).encode())


EXPECTED = "an object with question, ground_truth and generation"


@dataclass(frozen=True)
class Generation:
    """One text that a model generated for a problem."""

    file: str
    row: int  # line or list position in the file, from 1
    problem: Problem
    text: str


def read_generations(path: Path, task: Task) -> list[Generation]:
    """Read all generations of a file."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        what = error.strerror if isinstance(error, OSError) else f"not UTF-8 text ({error})"
        raise Code.GENERATIONS_FILE.error(
            f"{path}: {what}; expected a file of generations, .jsonl or .json"
        ) from error
    rows = _listed(text, path) if path.suffix == ".json" else _lines(text, path)
    generations = [_generation(row, path, number, task) for number, row in rows]
    if not generations:
        raise Code.GENERATIONS_FILE.error(f"{path}: no generations; expected at least one row")
    return generations


def _lines(text: str, path: Path) -> Iterator[tuple[int, object]]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield number, _parsed(line, f"{path}:{number}", "one JSON object on each line")


def _listed(text: str, path: Path) -> Iterator[tuple[int, object]]:
    document = _parsed(
        text, str(path), 'a JSON object with a list "generations" (JSON lines end in .jsonl)'
    )
    rows = document.get("generations") if isinstance(document, dict) else None
    if not isinstance(rows, list):
        raise Code.GENERATIONS_FILE.error(
            f'{path}: expected a JSON object with a list "generations"'
        )
    yield from enumerate(rows, 1)


def _parsed(text: str, location: str, expected: str) -> object:
    try:
        return DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise Code.GENERATIONS_FILE.error(f"{location}: expected {expected}: {error}") from error


def _missing(row: dict[str, object]) -> list[str]:
    """Return the keys that a row lacks; the text has one of two names."""
    missing = [key for key in ("question", "ground_truth") if key not in row]
    return missing + ([] if row.keys() & {"generation", "generations"} else ["generation"])


def _generation(row: object, path: Path, number: int, task: Task) -> Generation:
    location = f"{path}:{number}"
    if not isinstance(row, dict):
        raise Code.GENERATIONS_ROW.error(
            f"{location}: expected {EXPECTED}, found {type(row).__name__}"
        )
    if missing := _missing(row):
        raise Code.GENERATIONS_ROW.error(
            f"{location}: no key {' and no key '.join(missing)}; expected {EXPECTED}, found the"
            f" keys {', '.join(row) or '(none)'}"
        )
    text = row.get("generation", row.get("generations"))
    if isinstance(text, list) and len(text) == 1:
        text = text[0]
    if not isinstance(text, str) or not isinstance(row["question"], str):
        raise Code.GENERATIONS_ROW.error(
            f"{location}: expected question and generation as strings, one generation in each row"
        )
    try:
        problem = task.of_generation(row["question"], row["ground_truth"])
    except DopsdError as error:
        raise Code.GENERATIONS_ROW.error(
            f"{location}: {error}; is this a file of {task.name}?"
        ) from error
    return Generation(str(path), number, problem, text)
