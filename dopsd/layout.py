"""Where things lie: folders of a cell, the scratch folder of a setting, the tables and logs in them."""

from __future__ import annotations

import csv
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dopsd import checkpoint
from dopsd.config import Params, Source, kind_of
from dopsd.errors import DopsdError
from dopsd.progress import WORK, parse_object
from dopsd.tasks.storage import DATA, PROMPT

RUNS = Path("runs")
REPORTS = Path("reports")
LOG = "log.jsonl"
ORIGIN = "pretrain.json"  # in a base of `dopsd pretrain`: what it was made from
PUBLISHED = WORK / "publish.json"  # links that the last `dopsd publish` made
EVALUATED = "evaluate: done with checkpoint "  # `dopsd evaluate --update` says it, then the update, for who waits for one
ENDS = (
    "updates",
    "checkpoint_every",
    "max_empty_collects",
    "stop_on_collapse",
)  # of section train: no update depends on them
ENDS += ("collapse_window", "collapse_drop", "collapse_errors")
MEMORY = (
    "micro_batch_states",
    "gradient_checkpointing",
)  # of section train, as sampling.batch_size
PLANNED = ("d3llm",)  # methods whose batches depend on how many updates there will be
NAMES = ("protocol",)  # columns that stay texts: a protocol may be named 256


def run_folder(task: str, method: str, seed: int) -> Path:
    return RUNS / task / method / str(seed)


@dataclass(frozen=True)
class RunKey:
    """One task x method x seed: what DVC's stages from `train` on run for."""

    task: str
    method: str
    seed: int

    def __str__(self) -> str:
        return f"{self.task}/{self.method}/{self.seed}"

    @property
    def parts(self) -> tuple[str, str, int]:
        return self.task, self.method, self.seed

    @property
    def folder(self) -> Path:
        return run_folder(self.task, self.method, self.seed)

    @property
    def stage(self) -> str:
        """As DVC names a cell of its matrix."""
        return f"{self.task}-{self.method}-{self.seed}"

    @property
    def key(self) -> str:
        """As servers want names: lowercase letters, digits and dashes."""
        return self.stage.replace("_", "-").lower()

    @property
    def words(self) -> tuple[str, ...]:
        """As the command line takes them."""
        return ("--task", self.task, "--method", self.method, "--seed", str(self.seed))


def report_folder(task: str, method: str, seed: int) -> Path:
    return REPORTS / task / method / str(seed)


def data_files(task: str, *splits: str) -> list[Path]:
    """The problems of these splits and the instructions that they are asked with."""
    return [DATA / task / name for name in (*(f"{split}.jsonl" for split in splits), PROMPT)]


def base_files(params: Params) -> list[Path]:
    """Weights, config, tokenizer and template: a change in any of them makes another model."""
    return sorted(
        path for path in Path(params.model.path).glob("*") if path.is_file() and path.name != ORIGIN
    )


def sources_of(params: Params, method: str) -> dict[str, str]:
    """Files or hub names that the method's own section names, by key."""
    section = vars(vars(params.of(method).method)[kind_of(method)])
    return {
        f"method.{method}.{key}.path": value.path
        for key, value in section.items()
        if isinstance(value, Source)
    }


def settings_of(
    params: Params, task: str, method: str, seed: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What decides every update of a run, and what decides only where it ends and what it keeps.

    What changes the use of memory alone is in neither, and where files lie: their contents count.
    """
    params, kind = params.of(method), kind_of(method)
    dump = params.model_dump()
    train = {name: value for name, value in dump["train"].items() if name not in (*ENDS, *MEMORY)}
    if params.train.schedule == "cosine" or kind in PLANNED:
        train["updates"] = params.train.updates
    if params.model.attention == "auto":
        from dopsd.models.loading import resolved  # heavy, and seldom needed

        dump["model"] = resolved(params.model).model_dump()
    sections = {
        name: {k: v for k, v in dump[name].items() if k not in ("path", "batch_size")}
        for name in ("model", "sampling")
    }
    own = {
        name: value for name, value in dump["method"][kind].items() if name != "train"
    }  # which `of` has merged
    sections |= {
        "train": train,
        "task": task,
        "seed": seed,
        "method": kind,
        kind: own,
    }  # variants that agree share it
    return sections | {"scoring": dump["data"][task]["scoring"]}, {
        name: dump["train"][name] for name in ENDS
    }


def input_files(params: Params, task: str, method: str) -> list[Path]:
    """Files whose contents decide a run: problems, instructions, base, and what the method reads."""
    prompt = vars(params.data)[task].prompt_file
    files = [*data_files(task, "train"), *base_files(params), *([Path(prompt)] if prompt else [])]
    return files + [
        path for source in sources_of(params, method).values() if (path := Path(source)).is_file()
    ]


def scratch_folder(params: Params, task: str, method: str, seed: int) -> Path:
    """work/train-<hash of what decides the updates, data and base>-<hash of where it ends>; the code is in its run.json."""
    decisive, ends = settings_of(params, task, method, seed)
    end = hashlib.sha256(json.dumps(ends, sort_keys=True).encode()).hexdigest()[:8]
    return (
        WORK / f"train-{checkpoint.fingerprint(decisive, input_files(params, task, method))}-{end}"
    )


def read_log(path: Path) -> list[dict[str, float]]:
    """Rows of a training log; a line that is none is named."""
    return [
        parse_object(line, f"{path}:{number}")
        for number, line in enumerate(path.read_bytes().splitlines(), 1)
    ]


def write_table(path: Path, rows: list[dict[str, Any]]) -> None:
    """Rows as csv, the update first; a figure that a row lacks stays empty."""
    names = sorted(
        {name for row in rows for name in row}, key=lambda name: (name != "update", name)
    )
    tmp = path.with_name(f".{path.name}.tmp")
    with tmp.open("w", newline="") as out:
        writer = csv.DictWriter(out, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    tmp.rename(path)


def read_table(path: Path) -> list[dict[str, Any]]:
    """Rows of a csv written by write_table: numbers as numbers, names as texts, empty cells left out."""
    try:
        with path.open(newline="") as lines:
            rows = list(csv.DictReader(lines))
    except (UnicodeDecodeError, csv.Error) as error:
        raise DopsdError(f"{path}: not a table ({error}); restore it, or make it again") from error
    for number, row in enumerate(rows, 2):
        if None in row or None in row.values():
            raise DopsdError(
                f"{path}:{number}: not as many cells as columns; restore the table, or make it again"
            )
    return [
        {k: text if k in NAMES else _number(text) for k, text in row.items() if text != ""}
        for row in rows
    ]


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
