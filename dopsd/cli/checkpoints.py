"""Commands on one model or its answers: score, export, sample."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from dopsd.cli.arguments import (
    block_size_argument,
    cell_argument,
    command,
    require_adapter_config,
    seed,
    temperature,
)
from dopsd.config.loading import load_params
from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError, unknown

if TYPE_CHECKING:
    from collections.abc import Callable

    from dopsd.cli.arguments import Commands
    from dopsd.config.params import Params


COLUMNS = """\
input, one object for each generation:
  question      the problem, in the words of the task
  ground_truth  its reference answer
  generation    the text that a model wrote; in .json `generations`, with one text
  A .jsonl file has one object on each line, a .json file {"generations": [...]}.

table, one line for each file and one for all:
  file, n (generations), accuracy % (mean score), its 95% interval, and the task's
  other figures: the share that the other rule accepts, and for grids valid ones

--verdicts OUT.jsonl, one line for each generation:
  file, row, question, answer (read from the generation), score, and those figures
"""


def add_checkpoints(commands: Commands) -> None:
    """Add score, export and sample."""
    _score_command(commands)
    _export_command(commands)
    _sample_command(commands)


def _score_command(commands: Commands) -> None:
    description = "Score generations from files with the published rule or the strict rule."
    parser = command(commands, "score", description)
    parser.epilog, parser.formatter_class = COLUMNS, argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "files",
        nargs="+",
        type=Path,
        metavar="FILE",
        help=".jsonl rows, or .json as the code of d1 and d-OPSD writes it",
    )
    parser.add_argument("--task", required=True, help="task whose verifier scores")
    parser.add_argument(
        "--scoring",
        choices=("published", "strict"),
        default="published",
        help="scoring rule (default: published)",
    )
    parser.add_argument(
        "--json", action="store_true", dest="as_json", help="print JSON instead of a table"
    )
    parser.add_argument(
        "--verdicts",
        type=Path,
        metavar="OUT.jsonl",
        help="also write the score of every generation, one line each",
    )


def _export_command(commands: Commands) -> None:
    parser = command(
        commands,
        "export",
        "Write a trained model, such as base and adapter, as one that plain transformers loads.",
    )
    parser.add_argument(
        "--merged", action="store_true", help="add the adapter into the weights (required for one)"
    )
    parser.add_argument(
        "--adapter", type=Path, metavar="FOLDER", help="checkpoint folder (required)"
    )
    parser.add_argument(
        "--model", metavar="FOLDER", help="base model folder (default: base of the task)"
    )
    block_size_argument(parser, "model.block_size, unless --model names a base")
    cell_argument(parser, "task")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="folder to write, which must not exist (required)",
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        default="float32",
        help="stored precision; bfloat16 rounds small changes away (default: float32)",
    )


def _sample_command(commands: Commands) -> None:
    sample = command(commands, "sample", "Print a model's answer to one problem, step by step.")
    problem_help = (
        "question, or 16 digits of a 4x4 Sudoku with 0 for blanks (default: first test problem)"
    )
    sample.add_argument("problem", nargs="?", help=problem_help)
    cell_argument(sample, "task")
    sample.add_argument(
        "--adapter", type=Path, metavar="FOLDER", help="checkpoint folder (default: base model)"
    )
    sample.add_argument(
        "--temperature",
        type=temperature,
        default=0.0,
        help="sampling temperature; 0 is greedy (default: 0)",
    )
    sample.add_argument("--seed", type=seed, default=0, help="sampling seed (default: 0)")


def _score(a: argparse.Namespace) -> None:
    from dopsd.evaluation.score_files import run
    from dopsd.tasks.registry import TASKS

    own_task = None
    if a.task not in TASKS.names and a.params.is_file():  # a task that params.yaml may define
        tasks = load_params(a.params).data.tasks
        if a.task not in tasks:
            raise DopsdError(unknown(f"--task {a.task}", tasks), code=Code.UNKNOWN_NAME)
        own_task = tasks[a.task]
    run(a.task, a.files, a.scoring, a.as_json, a.verdicts, own_task)


def _export(a: argparse.Namespace, params: Params) -> None:
    if a.out and os.path.lexists(a.out):
        raise DopsdError(
            f"--out {a.out}: already exists; name a new folder or remove this one",
            code=Code.OUTPUT_EXISTS,
        )
    require_adapter_config(a.adapter)
    from dopsd.models.config import ModelConfig
    from dopsd.pipeline.export import export

    base = ModelConfig(path=a.model) if a.model else params.model_of(a.task)
    if a.block_size:
        base = base.model_copy(update={"block_size": a.block_size})
    export(base, a.adapter, a.out, a.dtype, a.merged)


def _sample(a: argparse.Namespace, params: Params) -> None:
    from dopsd.cli.show import sample

    sample(params, a.task, a.problem, a.adapter, a.temperature, a.seed)


FREE: dict[str, Callable[[argparse.Namespace], None]] = {"score": _score}
WITH_PARAMS: dict[str, Callable[[argparse.Namespace, Params], None]] = {
    "export": _export,
    "sample": _sample,
}
