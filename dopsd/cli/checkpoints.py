"""Commands on bases, a model or its answers: models, inspect, score, export, sample and push."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable
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
from dopsd.config.params import Params
from dopsd.core.errors import Code, unknown

if TYPE_CHECKING:
    from dopsd.cli.arguments import Commands


COLUMNS = """\
input, one object for each generation:
  question      the problem, in the words of the task
  ground_truth  its reference answer
  generation    the text that a model wrote
  A .jsonl file has one object on each line.
  A .json file is {"generations": [...]}.
  Its objects may have a list `generations` of one text instead of `generation`.

table, one line for each file and one for all:
  n             generations
  accuracy %    mean score
  95% interval  that of the accuracy
  others        the share that the other rule accepts, and for grids whole ones

--verdicts OUT.jsonl, one line for each generation:
  file, row, question, answer, score, and the other figures of the table
  The answer is the one that the verifier reads from the generation.
"""


def add_checkpoints(commands: Commands) -> None:
    """Add score, export and sample."""
    _score_command(commands)
    _export_command(commands)
    _sample_command(commands)


def _score_command(commands: Commands) -> None:
    description = "Score generations from files with the published rule or the strict rule."
    parser = command(commands, "score", description)
    parser.epilog = COLUMNS
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
    _dtype_argument(parser)


def _dtype_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        default="float32",
        help="precision of a whole model. bfloat16 rounds small changes away. (default: float32)",
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
        help="sampling temperature, 0 for greedy (default: 0)",
    )
    sample.add_argument("--seed", type=seed, default=0, help="sampling seed (default: 0)")


def _score(a: argparse.Namespace) -> None:
    from dopsd.evaluation.score_files import run
    from dopsd.tasks.registry import TASKS

    own_task = None
    if a.task not in TASKS.names and a.params.is_file():  # a task that params.yaml may define
        tasks = load_params(a.params).data.tasks
        if a.task not in tasks:
            raise Code.UNKNOWN_NAME.error(unknown(f"--task {a.task}", tasks))
        own_task = tasks[a.task]
    run(a.task, a.files, a.scoring, a.as_json, a.verdicts, own_task)


def _export(a: argparse.Namespace, params: Params) -> None:
    if a.out and os.path.lexists(a.out):
        raise Code.OUTPUT_EXISTS.error(
            f"--out {a.out}: already exists; name a new folder or remove this one"
        )
    require_adapter_config(a.adapter)
    from dopsd.models.config import ModelConfig
    from dopsd.pipeline.checkpoints.export import export

    base = ModelConfig(path=a.model) if a.model else params.model_of(a.task)
    if a.block_size:
        base = base.model_copy(update={"block_size": a.block_size})
    export(base, a.adapter, a.out, a.dtype, a.merged)


def _sample(a: argparse.Namespace, params: Params) -> None:
    from dopsd.cli.show import sample

    sample(params, a.task, a.problem, a.adapter, a.temperature, a.seed)


def add_bases(commands: Commands) -> None:
    """Add models and inspect."""
    description = (
        "List published checkpoints that can be a base, and what each architecture supports."
    )
    commands.add_parser("models", description=description, help=description)
    description = (
        "Say what a folder or a name on the hub is, and whether it can be a base. No weights are"
        " loaded."
    )
    parser = commands.add_parser("inspect", description=description, help=description)
    parser.add_argument(
        "base", metavar="BASE", help="a checkpoint in hub format, or organization/name on the hub"
    )
    block_size_argument(parser, "what config.json says")


def _models(_: argparse.Namespace) -> None:
    from dopsd.pipeline.bases.table import list_bases

    list_bases()


def _inspect(a: argparse.Namespace) -> None:
    from dopsd.pipeline.bases.inspect import inspect

    inspect(a.base, a.block_size)


def _name(text: str) -> str:
    """Parse a name of the hub: letters, digits, dots, dashes and one slash at most."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"expected a name of the hub, found {text!r}")
    return text


def add_push(commands: Commands) -> None:
    """Add push."""
    parser = command(
        commands,
        "push",
        "Upload an adapter, or base and adapter as one model, with a model card, to the Hugging"
        " Face hub. The token is that of HF_TOKEN or of `hf auth login`.",
    )
    parser.add_argument("repo", type=_name, metavar="USER/NAME", help="model repository of the hub")
    for name in ("task", "method", "seed"):
        cell_argument(parser, name)
    parser.add_argument(
        "--adapter",
        type=Path,
        metavar="FOLDER",
        help="checkpoint folder (default: the run's selected one)",
    )
    parser.add_argument(
        "--merged", action="store_true", help="upload base and adapter as one model"
    )
    _dtype_argument(parser)
    who = parser.add_mutually_exclusive_group()
    who.add_argument(
        "--private", action="store_true", help="only you see a new repository (default)"
    )
    who.add_argument("--public", action="store_true", help="everyone sees a new repository")
    parser.add_argument(
        "--revision", default="main", metavar="BRANCH", help="branch to commit to (default: main)"
    )
    parser.add_argument("--message", metavar="TEXT", help="commit message")
    _card_arguments(parser)
    parser.add_argument(
        "--no-report",
        action="store_true",
        help="do not upload the run's report, which shows ten test problems with answers",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="list the files and their sizes, and send nothing"
    )


def _card_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--base-model",
        type=_name,
        metavar="USER/NAME",
        help="name of the base on the hub, for the card (default: left out)",
    )
    parser.add_argument(
        "--license",
        type=_name,
        metavar="NAME",
        help="licence for the card, as the hub spells it, such as apache-2.0 (default: left out)",
    )


def _push(a: argparse.Namespace, params: Params) -> None:
    require_adapter_config(a.adapter)
    from dopsd.pipeline.checkpoints.push import PushRequest, push

    push(
        PushRequest(
            a.repo,
            params.run(a.task, a.method, a.seed),
            params,
            a.adapter,
            is_merged=a.merged,
            dtype=a.dtype,
            is_private=not a.public,
            revision=a.revision,
            message=a.message,
            base_model=a.base_model,
            license=a.license,
            has_report=not a.no_report,
            is_dry=a.dry_run,
        )
    )


FREE: dict[str, Callable[[argparse.Namespace], None]] = {
    "inspect": _inspect,
    "models": _models,
    "score": _score,
}
WITH_PARAMS: dict[str, Callable[[argparse.Namespace, Params], None]] = {
    "export": _export,
    "push": _push,
    "sample": _sample,
}
