"""Every parser of files and words that people bring, as `name: trial(draw, root) -> call`: garbage is put in place, then read.

A call may return, or raise what ends a command with one line and exit code 2.
"""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import mutate
from texts import PUBLISHED, golden

from dopsd.config import Data, Lora, Model, Source
from dopsd.tasks import load_task
from dopsd.types import Problem, Task

Call = Callable[[], object]
TASKS = ("sudoku", "gsm8k", "math500", "countdown")
PUZZLE, GRID = "0234341221434320", "1234341221434321"
ROWS = {  # a generation of each task, where the published ones are not at hand
    "sudoku": {"question": f"Solve: {PUZZLE}", "ground_truth": GRID, "generation": f"<answer>{GRID}</answer>"},
    "gsm8k": {"question": "2 + 2?", "ground_truth": 4.0, "generation": r"<answer>\boxed{4}</answer>"},
    "math500": {"question": "Half?", "ground_truth": r"\frac12", "generation": r"<answer>\boxed{\frac{1}{2}}</answer>"},
    "countdown": {"question": "", "ground_truth": [[49, 55, 53], 51], "generation": r"<answer>\boxed{49+55-53}</answer>"},
}
SOURCES = {  # rows as the datasets have them
    "sudoku": {"Puzzle": PUZZLE, "Solution": GRID},
    "gsm8k": {"question": "2 + 2?", "answer": "It is 4.\n#### 4"},
    "math500": {"problem": "Half?", "solution": r"It is \boxed{\frac12}", "answer": r"\frac12"},
    "countdown": {"nums": [49, 55, 53], "target": 51},
    "traces": {"question": "2 + 2?", "response": "4"},
}
SETTINGS = """\
matrix: {tasks: [sudoku], methods: [d_opsd, sft], seeds: [0, 1]}
data:
  sudoku: {train: 64, test_file: null, seed: 0}
  gsm8k: {train: {path: train.jsonl, name: main, split: train, revision: null}, limit: 5}
train: {updates: 10, learning_rate: 3.0e-3, betas: [0.9, 0.99], lora: {r: 8, targets: [q_proj]}}
method:
  d_opsd: {clip: 0.05, train: {updates: 5}}
evaluate:
  protocols:
    greedy: {gen_length: 40, block_length: 4, steps: 40}
  bootstrap: 100
ablate:
  variants: {default: {}, live_teacher: {teacher: live}}
  tables: {teachers: [default, live_teacher]}
tracking: {enabled: false, uri: null, experiment: dopsd, registered_model: dopsd}
"""
KEYS = ["train.updates", "matrix.seeds", "evaluate.protocols.greedy.steps", "ablate.variants.x.teacher", "tracking.experiment"]
KEYS += [
    "data.gsm8k.train.path",
    "method.d_opsd.clip",
    "train",
    "x",
    "",
    ".",
    "a..b",
    "evaluate.protocols.../x",
    "train.lora.r",
]
KEYS += [
    "matrix.methods",
    "ablate.tables.../x",
    "train.betas",
    "sampling.gen_length",
    "data.sudoku.test_file",
    "\ud800",
    "a\nb",
]


def put(path: str | Path, content: bytes) -> Path:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(content)
    return Path(path)


@cache
def tasks() -> dict[str, Task]:
    return {
        f"{name} {rule}": load_task(name, Data.model_validate({name: {"scoring": rule}}))
        for name in TASKS
        for rule in ("published", "strict")
    }


@cache
def generations(task: str) -> list[dict[str, Any]]:
    rows = golden(task)[:20] if PUBLISHED.is_dir() else []
    kept = ("question", "ground_truth", "generation")
    return [ROWS[task], *({key: row[key] for key in kept} for row in rows)]


def _generation_file(draw: Random, task: str) -> Path:
    rows = [dict(draw.choice(generations(task))) for _ in range(draw.choice((1, 1, 2)))]
    is_lines = draw.random() < 0.7
    listed: Any = rows if is_lines else {"generations": [r | {"generations": [r["generation"]]} for r in rows], "n": 1}
    if draw.random() < 0.3:
        (rows if is_lines else listed["generations"])[0] |= {"generation" if is_lines else "generations": mutate.text(draw)}
    lines = b"\n".join(mutate.swapped(draw, row) for row in rows) if is_lines else mutate.swapped(draw, listed)
    return put("g.jsonl" if is_lines else "g.json", lines if draw.random() < 0.6 else mutate.changed(draw, lines))


def score(draw: Random, root: str) -> Call:
    from dopsd.rescore import run

    task, rule = draw.choice(TASKS), draw.choice(("published", "strict"))
    file, verdicts = _generation_file(draw, task), draw.choice((None, Path("v.jsonl")))
    return lambda: run(task, [file], rule, draw.random() < 0.5, verdicts)


def read_generations(draw: Random, root: str) -> Call:
    from dopsd import generations

    task = draw.choice(TASKS)
    file = _generation_file(draw, task)
    return lambda: generations.read_generations(file, tasks()[f"{task} published"])


def completions(draw: Random, root: str) -> Call:
    """Texts through a task's extraction and verifier, long ones too."""
    task = draw.choice(list(tasks().values()))
    row = draw.choice(generations(task.name))
    text = (
        mutate.text(draw)
        if draw.random() < 0.5
        else mutate.changed(draw, row["generation"].encode()).decode("utf-8", "surrogateescape")
    )
    text *= draw.choice((1, 1, 1, 30))
    problem = task.of_generation(row["question"], row["ground_truth"])
    return lambda: (task.verify(problem, text), task.reward(problem, text))


def params(draw: Random, root: str) -> Call:
    from dopsd.params import load_params, missing_files

    sound = SETTINGS.encode()
    if draw.random() < 0.4:
        from ruamel.yaml import YAML

        sound = mutate.swapped(draw, YAML(typ="safe", pure=True).load(SETTINGS))  # JSON is YAML
    if draw.random() < 0.1:
        sound = draw.choice((SETTINGS, "")).encode() + draw.choice(mutate.YAML).encode()
    path = put("params.yaml", sound if draw.random() < 0.2 else mutate.changed(draw, sound))
    return lambda: missing_files(load_params(path))


def overrides(draw: Random, root: str) -> Call:
    """`dopsd params --set` and the overrides of a flow, over settings that are whole or broken."""
    from dopsd import profiles
    from flows.settings import Asked

    path = put("params.yaml", SETTINGS.encode() if draw.random() < 0.8 else mutate.changed(draw, SETTINGS.encode()))
    key = draw.choice(KEYS) if draw.random() < 0.8 else mutate.name(draw, root)
    value = (
        mutate.changed(draw, b"[0, {a: 1}]").decode("utf-8", "surrogateescape")
        if draw.random() < 0.5
        else draw.choice(mutate.JSON)
    )
    changes = [f"{key}={value}"] if draw.random() < 0.9 else [value]
    if draw.random() < 0.3:
        odd = draw.choice(
            [
                None,
                -1,
                0.5,
                float("nan"),
                10**400,
                "x" * 1000,
                "\ud800",
                "../x",
                [],
                {},
                [[]],
                {"a": {"b": 1}},
                "null",
                "2001-01-01",
            ]
        )
        return lambda: profiles.params(None, "reference", "1x80gb", Asked(overrides={key: odd}).changes, path)
    return lambda: profiles.params(None, "reference", "1x80gb", changes, path)


@cache
def policy() -> Any:
    from toys import save_toy

    from dopsd.models import load_policy

    save_toy(Path("base"))
    return load_policy(Model(path="base"), Lora(r=2, alpha=4, dropout=0.0, targets=["ff_out", "q_proj"]), 0)


@cache
def adapter() -> dict[str, bytes]:
    from safetensors.torch import save_file

    from dopsd.checkpoint import ADAPTER
    from dopsd.models.lora import adapter_tensors, save_config

    Path("sound").mkdir(exist_ok=True)
    save_config(policy().adapted, Path("sound"))
    save_file(adapter_tensors(policy().adapted), Path("sound") / ADAPTER)
    return {name: (Path("sound") / name).read_bytes() for name in (ADAPTER, "adapter_config.json")}


def _header_changed(draw: Random, sound: bytes) -> bytes:
    """A safetensors file whose header is another JSON, its length right or not."""
    size = int.from_bytes(sound[:8], "little")
    header = mutate.swapped(draw, json.loads(sound[8 : 8 + size]))
    for old, new in ((b"F32", draw.choice((b"I32", b"F16", b"BF16", b"BOOL", b"U64", b"F4", b"C64", b"F32"))),):
        header = header.replace(old, new, draw.choice((0, 1)))
    length = len(header) if draw.random() < 0.9 else draw.choice((0, 1, 2**31, 2**63, 2**64 - 1))
    return length.to_bytes(8, "little") + header + sound[8 + size :]


def _adapter_files(draw: Random, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    for name, content in adapter().items():
        kind = draw.random()
        if kind < 0.3:
            content = mutate.changed(draw, content)
        elif kind < 0.7:
            content = mutate.swapped(draw, json.loads(content)) if name.endswith(".json") else _header_changed(draw, content)
        put(folder / name, content)
    if draw.random() < 0.1:
        odd = folder / draw.choice(list(adapter()))
        odd.unlink()
        kind = draw.randrange(5)
        if kind == 0:
            odd.symlink_to(odd)
        elif kind == 1:
            odd.symlink_to("/dev/zero")
        elif kind == 2:
            os.mkfifo(odd)
        elif kind == 3:
            odd.mkdir()


def adapters(draw: Random, root: str) -> Call:
    from dopsd.checkpoint import read_adapter
    from dopsd.models.lora import check_config, load_adapter, lora_of

    folder = Path("adapter")
    policy()
    _adapter_files(draw, folder)

    def call() -> None:
        lora_of(folder)
        weights = read_adapter(folder)
        check_config(policy().adapted, folder)
        load_adapter(policy().adapted, weights, folder)

    return call


STATE = {"update": 4, "counters": {"rollouts": 8}, "waiting": 0, "empty_in_a_row": 0, "spent": 1.5, "ranks": 1}
STATE |= {"scores": [0.5], "squares": [0.1], "gathered": {"loss": [1.0, 2.0]}}


def checkpoints(draw: Random, root: str) -> Call:
    """A training folder with two checkpoints, damaged with their digests or against them, then resumed from."""
    import torch
    from safetensors.torch import save

    from dopsd import checkpoint
    from dopsd.provenance import sha256
    from dopsd.runfolder import RunFolder

    scratch, is_sealed = Path("work/train-0"), draw.random() < 0.6
    policy()
    shutil.rmtree(scratch, ignore_errors=True)
    for number in ("000002", draw.choice(("000004", "000004", "abcdef", "\u00b2\u00b2\u00b2\u00b2\u00b2\u00b2"))):
        folder = scratch / f"step-{number}"
        for name, content in adapter().items():
            put(folder / name, content)
        put(folder / "state.json", json.dumps(STATE).encode())
        put(folder / "trainer.safetensors", save({"ema/x": torch.zeros(2)}))
        put(folder / "batches.0.safetensors", save({"rng": torch.get_rng_state(), "micro_batch": torch.tensor([8, 0])}))
        odd = folder / draw.choice(sorted(path.name for path in folder.iterdir()))
        content = odd.read_bytes()
        if is_sealed:
            kind = odd.name.endswith(".json") and draw.random() < 0.8
            put(
                odd,
                mutate.swapped(draw, json.loads(content))
                if kind
                else _header_changed(draw, content)
                if odd.suffix != ".json"
                else b"",
            )
        digests = json.dumps({path.name: sha256(path) for path in sorted(folder.iterdir())}).encode()
        if not is_sealed:
            put(odd, mutate.changed(draw, content))
        if draw.random() < 0.5:
            listed = json.loads(digests) | draw.choice(
                ({}, {"../../../etc/passwd": "0"}, {"/etc/passwd": "0"}, {"a\0": "0"}, {"x" * 300: "0"})
            )
            digests = mutate.swapped(draw, listed) if draw.random() < 0.7 else mutate.changed(draw, digests)
        put(folder / "digests.json", digests)
    put(scratch / "log.jsonl", _log(draw))
    accelerator = SimpleNamespace(is_main_process=True, num_processes=1, process_index=0)
    learner = SimpleNamespace(adapted=policy().adapted, device=torch.device("cpu"))
    loop = SimpleNamespace(policy=learner, parameters={}, optimizer=SimpleNamespace(state={}), update=0)
    loop.watch, loop.micro_batches = SimpleNamespace(), SimpleNamespace()

    def call() -> None:
        checkpoint.checkpoints(scratch)
        RunFolder(scratch, accelerator).resume(loop)

    return call


def _log(draw: Random) -> bytes:
    row = {"update": 2, "loss": 0.5, "time/update_seconds": 1.0}
    lines = [mutate.swapped(draw, row) if draw.random() < 0.3 else json.dumps(row).encode() for _ in range(3)]
    found = b"\n".join(lines) + b"\n"
    return found if draw.random() < 0.5 else mutate.changed(draw, found)


def problems(draw: Random, root: str) -> Call:
    task = draw.choice(list(tasks().values()))
    row = draw.choice(generations(task.name))
    problem: Problem = task.of_generation(row["question"], row["ground_truth"])
    line = mutate.swapped(draw, vars(problem))
    put(f"data/{task.name}/train.jsonl", line if draw.random() < 0.7 else mutate.changed(draw, line + b"\n" + line))
    return lambda: [task.messages(p, "instructions") for p in task.load("train")]


@cache
def _parquet(name: str) -> bytes:
    from pyarrow import Table, parquet

    stream = io.BytesIO()
    parquet.write_table(Table.from_pylist([SOURCES[name]] * 3), stream, compression="none")
    return stream.getvalue()


def rows(draw: Random, root: str) -> Call:
    """Rows of .jsonl, .csv and .parquet files, through each task's reading of them, and of sft's traces."""
    from dopsd.tasks.sources import read_rows, text_of
    from dopsd.tasks.sudoku import read_published

    name, suffix = draw.choice(list(SOURCES)), draw.choice((".jsonl", ".json", ".csv", ".parquet"))
    values = SOURCES[name]
    if suffix == ".parquet":
        content = mutate.changed(draw, _parquet(name))
    elif suffix == ".csv":
        cells = [f'"{value}"' for value in values.values()]
        content = mutate.changed(draw, f"{','.join(values)}\n{','.join(cells)}\n{','.join(cells)}\n".encode())
    else:
        content = mutate.swapped(draw, values)
        content = content if draw.random() < 0.7 else mutate.changed(draw, content + b"\n" + content)
    path = put(f"rows{suffix}", content)
    if name == "sudoku":
        return lambda: read_published(path, 1)
    if name == "traces":
        return lambda: [(text_of(r, "question"), text_of(r, "response")) for r in read_rows(Source(path=str(path)), "traces")]
    task = load_task(name, Data.model_validate({name: {"train": {"path": str(path)}}}))
    return lambda: task.read("train")


def logs(draw: Random, root: str) -> Call:
    """A run's log, tables and results, and files of lines that a kill cut short."""
    from dopsd.layout import read_log, read_table
    from dopsd.lines import read_lines
    from dopsd.progress import read_json

    kind = draw.randrange(4)
    if kind == 0:
        path = put("log.jsonl", _log(draw))
        return lambda: read_log(path)
    if kind == 1:
        path = put("lines.jsonl", _log(draw))
        return lambda: read_lines(path)
    if kind == 2:
        path = put("curve.csv", mutate.changed(draw, b"update,accuracy,protocol\n0,0.5,greedy\n25,,256\n50,0.7,greedy\n"))
        return lambda: read_table(path)
    path = put(
        "select.json",
        mutate.changed(draw, b'{"update": 25, "accuracy": 0.5}') if draw.random() < 0.5 else mutate.swapped(draw, STATE),
    )
    return lambda: read_json(path, "dopsd select")


def names(draw: Random, root: str) -> Call:
    """Names of tasks, methods, seeds, protocols, tables, adapters, files and typed problems, as words of a command."""
    from dopsd.cli import main

    put("params.yaml", SETTINGS.encode())
    put("data/sudoku/test.jsonl", json.dumps(vars(tasks()["sudoku published"].of_generation(PUZZLE, GRID))).encode() + b"\n")
    odd = mutate.name(draw, root).replace("\0", "").replace("\ud800", "\udcff")  # which no command line can bring
    words = draw.choice(
        (
            *(
                ["compare", odd],
                ["compare", f"sudoku/d_opsd/{odd}"],
                ["compare", f"sudoku/{odd}/0"],
                ["compare", f"{odd}/d_opsd/0"],
            ),
            *([s, f"--task={odd}"] for s in ("prepare", "pretrain", "evaluate-base", "verify-teacher", "record", "sample")),
            *([s, f"--method={odd}"] for s in ("train", "evaluate", "select", "test", "report")),
            *([s, f"--seed={odd}"] for s in ("select", "test", "report")),
            *(
                ["evaluate", f"--{key}={odd}"]
                for key in ("protocol", "adapter", "model", "prompt-file", "split", "update", "attempts")
            ),
            *(
                ["ablate", "--", odd],
                ["score", "--task", odd, "x.jsonl"],
                ["score", "--task=gsm8k", odd],
                ["sample", "--", odd],
            ),
            *(
                ["export", "--merged", f"--adapter={odd}", "--out=exported"],
                ["sample", f"--adapter={odd}"],
                ["sample", f"--temperature={odd}"],
            ),
            *(
                ["params", f"--profile={odd}"],
                ["params", f"--preset={odd}", "--profile=llada-8b-gsm8k"],
                ["check", f"--params={odd}"],
            ),
        )
    )
    return lambda: main(words)


def typed(draw: Random, root: str) -> Call:
    """Problems typed by a person."""
    task = draw.choice(list(tasks().values()))
    text = draw.choice((mutate.text(draw), mutate.name(draw, root), "0204032001400402", "49 55 53 51"))
    return lambda: task.messages(task.ask(text), "instructions")


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
}
