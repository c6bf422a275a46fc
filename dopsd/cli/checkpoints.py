"""Commands on one model or its answers: score, export, sample."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dopsd.cli.arguments import cell_argument, command, require_adapter_config, seed, temperature
from dopsd.core.errors import DopsdError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from dopsd.cli.arguments import Commands
    from dopsd.config.params import Params


def add_checkpoints(commands: Commands) -> None:
    _score_command(commands)
    _export_command(commands)
    _sample_command(commands)


def _score_command(commands: Commands) -> None:
    text = "score generations on file, by the published rule or strictly"
    parser = commands.add_parser("score", help=text, description=f"{text}.")
    parser.add_argument(
        "files",
        nargs="+",
        type=Path,
        metavar="FILE",
        help=".jsonl rows, or .json as d1 and d-OPSD write it",
    )
    parser.add_argument("--task", required=True, help="whose verifier scores")
    parser.add_argument(
        "--scoring",
        choices=("published", "strict"),
        default="published",
        help="rule (default published)",
    )
    parser.add_argument("--json", action="store_true", dest="as_json", help="the table as JSON")
    parser.add_argument(
        "--verdicts", type=Path, metavar="OUT.jsonl", help="also write a line for every generation"
    )


def _export_command(commands: Commands) -> None:
    parser = command(
        commands, "export", "write base and adapter as one model that plain transformers loads"
    )
    parser.add_argument("--merged", action="store_true", help="add the adapter into the weights")
    parser.add_argument("--adapter", type=Path, help="a checkpoint folder")
    parser.add_argument("--model", help="base model folder (default: that of the task)")
    cell_argument(parser, "task")
    parser.add_argument("--out", type=Path, help="a folder that does not exist yet")
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        default="float32",
        help="bfloat16 loses small changes",
    )


def _sample_command(commands: Commands) -> None:
    sample = command(commands, "sample", "print a model's answer to a problem, step by step")
    problem_help = (
        "a question, or a puzzle of 16 digits with 0 for blanks (default: the first test problem)"
    )
    sample.add_argument("problem", nargs="?", help=problem_help)
    cell_argument(sample, "task")
    sample.add_argument(
        "--adapter", type=Path, help="a checkpoint folder (default: the base model)"
    )
    sample.add_argument("--temperature", type=temperature, default=0.0)
    sample.add_argument("--seed", type=seed, default=0)


def _score(a: argparse.Namespace) -> None:
    from dopsd.evaluation.score_files import run

    run(a.task, a.files, a.scoring, a.as_json, a.verdicts)


def _export(a: argparse.Namespace, params: Params) -> None:
    if a.out and a.out.exists():
        raise DopsdError(f"--out {a.out}: is there already; name a new folder or remove it")
    require_adapter_config(a.adapter)
    from dopsd.pipeline.export import export

    export(a.model or params.model_of(a.task).path, a.adapter, a.out, a.dtype, a.merged)


def _sample(a: argparse.Namespace, params: Params) -> None:
    from dopsd.cli.show import sample

    sample(params, a.task, a.problem, a.adapter, a.temperature, a.seed)


FREE: dict[str, Callable[[argparse.Namespace], None]] = {"score": _score}
WITH_PARAMS: dict[str, Callable[[argparse.Namespace, Params], None]] = {
    "export": _export,
    "sample": _sample,
}
