"""Every parser of files and words that people bring, as `name: trial(draw, root) -> call`: garbage
is put in place, then read.

A call may return, or raise what ends a command with one line and exit code 2.
"""

import io
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import mutate
from examples import (
    COMMANDS,
    DOCUMENTS,
    FEWEST,
    GRID,
    KEYS,
    PUZZLE,
    ROWS,
    SETTINGS,
    SOURCES,
    STATE,
    VALUES,
)
from mutate import log_lines, put
from texts import PUBLISHED, golden
from weights import adapters, checkpoints

from dopsd.core.types import Problem
from dopsd.tasks.common.config import Source
from dopsd.tasks.common.task import Task
from dopsd.tasks.custom.config import CustomTaskConfig
from dopsd.tasks.registry import TASKS, load_task

Call = Callable[[], object]


@cache
def tasks() -> dict[str, Task]:
    def made(name: str, rule: str) -> Task:
        return load_task(name, TASKS.config_class(name).model_validate({"scoring": rule}))

    rules = ("published", "strict")
    return {f"{name} {rule}": made(name, rule) for name in TASKS.names for rule in rules}


@cache
def generations(task: str) -> list[dict[str, Any]]:
    has_rows = (PUBLISHED / "golden" / f"{task}_256.jsonl").is_file()
    rows = golden(task)[:20] if has_rows else []
    kept = ("question", "ground_truth", "generation")
    return [ROWS[task], *({key: row[key] for key in kept} for row in rows)]


def _generation_file(draw: Random, task: str) -> Path:
    rows = [dict(draw.choice(generations(task))) for _ in range(draw.choice((1, 1, 2)))]
    is_lines = draw.random() < 0.7
    if not is_lines:
        rows = [row | {"generations": [row["generation"]]} for row in rows]
    if draw.random() < 0.3:
        rows[0]["generation" if is_lines else "generations"] = mutate.text(draw)
    if is_lines:
        lines = b"\n".join(mutate.swapped(draw, row) for row in rows)
    else:
        lines = mutate.swapped(draw, {"generations": rows, "n": 1})
    return put("g.jsonl" if is_lines else "g.json", mutate.kept(draw, 0.6, lines))


def _changed(draw: Random, text: str) -> str:
    return mutate.changed(draw, text.encode()).decode("utf-8", "surrogateescape")


def score(draw: Random, root: str) -> Call:
    from dopsd.evaluation.score_files import run

    task, rule = draw.choice(TASKS.names), draw.choice(("published", "strict"))
    file, verdicts = _generation_file(draw, task), draw.choice((None, Path("v.jsonl")))
    return lambda: run(task, [file], rule, draw.random() < 0.5, verdicts)


def read_generations(draw: Random, root: str) -> Call:
    from dopsd.evaluation.score_files import read_generations

    task = draw.choice(TASKS.names)
    file = _generation_file(draw, task)
    return lambda: read_generations(file, tasks()[f"{task} published"])


def completions(draw: Random, root: str) -> Call:
    """Texts through a task's extraction and verifier, long ones too."""
    task = draw.choice(list(tasks().values()))
    row = draw.choice(generations(task.name))
    is_new = draw.random() < 0.5
    text = mutate.text(draw) if is_new else _changed(draw, row["generation"])
    text *= draw.choice((1, 1, 1, 30))
    problem = task.of_generation(row["question"], row["ground_truth"])
    return lambda: (task.verify(problem, text), task.reward(problem, text))


def params(draw: Random, root: str) -> Call:
    from dopsd.config.loading import load_params
    from dopsd.config.named_files import missing_files

    sound = SETTINGS.encode()
    if draw.random() < 0.4:
        from ruamel.yaml import YAML

        sound = mutate.swapped(draw, YAML(typ="safe", pure=True).load(SETTINGS))  # JSON is YAML
    if draw.random() < 0.1:
        sound = draw.choice((SETTINGS, "")).encode() + draw.choice(DOCUMENTS).encode()
    path = put("params.yaml", mutate.kept(draw, 0.2, sound))
    return lambda: missing_files(load_params(path))


def overrides(draw: Random, root: str) -> Call:
    """`dopsd params --set` and the overrides of a flow, over settings that are whole or broken."""
    from dopsd.config import params_file
    from dopsd.pipeline.run.request import RunRequest

    path = put("params.yaml", mutate.kept(draw, 0.8, FEWEST.encode()))
    key = draw.choice(KEYS) if draw.random() < 0.8 else mutate.name(draw, root)
    is_yaml = draw.random() < 0.5
    value = _changed(draw, "[0, {a: 1}]") if is_yaml else draw.choice(mutate.JSON)
    changes = [f"{key}={value}"] if draw.random() < 0.9 else [value]
    odd = {key: draw.choice(VALUES)} if draw.random() < 0.3 else {}

    def call() -> object:
        asked = RunRequest(overrides=odd).changes if odd else changes
        return params_file.params(None, "reference", "1x80gb", asked, path)

    return call


def problems(draw: Random, root: str) -> Call:
    task = draw.choice(list(tasks().values()))
    row = draw.choice(generations(task.name))
    problem: Problem = task.of_generation(row["question"], row["ground_truth"])
    line = mutate.swapped(draw, vars(problem))
    is_whole = draw.random() < 0.7
    lines = line if is_whole else mutate.changed(draw, line + b"\n" + line)
    put(f"data/{task.name}/train.jsonl", lines)
    return lambda: [task.messages(p, "instructions") for p in task.load("train")]


@cache
def _parquet(name: str) -> bytes:
    from pyarrow import Table, parquet

    stream = io.BytesIO()
    parquet.write_table(Table.from_pylist([SOURCES[name]] * 3), stream, compression="none")
    return stream.getvalue()


def rows(draw: Random, root: str) -> Call:
    """Rows of files through each task's reading of them, and of sft's traces."""
    from dopsd.tasks.common.sources import read_rows, text_of
    from dopsd.tasks.sudoku.task import read_published

    name, suffix = draw.choice(list(SOURCES)), draw.choice((".jsonl", ".json", ".csv", ".parquet"))
    values = SOURCES[name]
    if suffix == ".parquet":
        content = mutate.changed(draw, _parquet(name))
    elif suffix == ".csv":
        cells = ",".join(f'"{value}"' for value in values.values())
        content = mutate.changed(draw, f"{','.join(values)}\n{cells}\n{cells}\n".encode())
    else:
        content = mutate.swapped(draw, values)
        if draw.random() >= 0.7:
            content = mutate.changed(draw, content + b"\n" + content)
    path = put(f"rows{suffix}", content)
    if name == "sudoku":
        return lambda: read_published(path, 1)
    if name == "traces":
        source, keys = Source(path=str(path)), ("question", "response")
        return lambda: [[text_of(r, key) for key in keys] for r in read_rows(source, "traces")]
    task = load_task(name, TASKS.config_class(name).model_validate({"train": {"path": str(path)}}))
    return lambda: task.read("train")


def logs(draw: Random, root: str) -> Call:
    """A run's log, tables and results, and files of lines that a kill cut short."""
    from dopsd.core.files import read_json, read_lines
    from dopsd.core.tables import read_log, read_table

    kind = draw.randrange(4)
    if kind == 0:
        path = put("log.jsonl", log_lines(draw))
        return lambda: read_log(path)
    if kind == 1:
        path = put("lines.jsonl", log_lines(draw))
        return lambda: read_lines(path)
    if kind == 2:
        curve = b"update,accuracy,protocol\n0,0.5,greedy\n25,,256\n50,0.7,greedy\n"
        path = put("curve.csv", mutate.changed(draw, curve))
        return lambda: read_table(path)
    if draw.random() < 0.5:
        path = put("select.json", mutate.changed(draw, b'{"update": 25, "accuracy": 0.5}'))
    else:
        path = put("select.json", mutate.swapped(draw, STATE))
    return lambda: read_json(path, "dopsd select")


def names(draw: Random, root: str) -> Call:
    """Names of tasks, methods, seeds, protocols, tables, files..., as words of a command."""
    from dopsd.cli.main import main

    put("params.yaml", FEWEST.encode())
    problem = tasks()["sudoku published"].of_generation(PUZZLE, GRID)
    put("data/sudoku/test.jsonl", json.dumps(vars(problem)).encode() + b"\n")
    # what no command line can bring
    odd = mutate.name(draw, root).replace("\0", "").replace("\ud800", "\udcff")
    words = [word.replace("@", odd) for word in draw.choice(COMMANDS).split(" ")]
    return lambda: main(words)


def typed(draw: Random, root: str) -> Call:
    """Problems typed by a person."""
    task = draw.choice(list(tasks().values()))
    known = ("0204032001400402", "49 55 53 51")
    text = draw.choice((mutate.text(draw), mutate.name(draw, root), *known))
    return lambda: task.messages(task.ask(text), "instructions")


@cache
def own_tasks() -> list[Task]:
    """Tasks of params.yaml whose verifiers run in this process."""
    verifiers = [
        {"type": "exact", "ignore_case": True, "ignore_punctuation": True},
        {"type": "number", "tolerance": 0.5},
        {"type": "choice"},
        {"type": "regex", "pattern": "(?s).*{answer}.*"},
        {"type": "json_schema"},
    ]
    formats = {"boxed": "last", "tag": "answer", "after": "=", "regex": r"\d+", "text": "whole"}
    section = {"type": "custom", "train": {"path": "rows.jsonl"}}
    section |= {"answer_format": [{key: value} for key, value in formats.items()]}
    sections = [section | {"verifier": verifier} for verifier in verifiers]
    return [load_task("mine", CustomTaskConfig.model_validate(each)) for each in sections]


def own_answers(draw: Random, root: str) -> Call:
    """Generations and gold answers through the verifiers of a task that params.yaml defines."""
    task, gold = draw.choice(own_tasks()), draw.choice(("4", "B", "{}", mutate.text(draw)))
    text = mutate.text(draw) * draw.choice((1, 1, 1, 30))
    return lambda: task.verify(task.of_generation("2 + 2?", gold), text)


PARSERS = {
    "score files": score,
    "generations": read_generations,
    "completions": completions,
    "params.yaml": params,
    "overrides": overrides,
    "adapter folders": adapters,
    "checkpoints": checkpoints,
    "problems": problems,
    "data rows": rows,
    "logs and tables": logs,
    "names": names,
    "typed problems": typed,
    "own answers": own_answers,
}
