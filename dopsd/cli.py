"""`dopsd <command>`: arguments to run(params); what is heavy is imported inside the commands."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from dopsd.config import Params
from dopsd.errors import DopsdError
from dopsd.params import load_params

STAGES = {  # stage: (help, arguments beyond --params)
    "prepare": ("write the problems of every split to data/<task>/", ("task",)),
    "pretrain": ("train the embedded base model by masked diffusion into base/", ()),
    "evaluate_base": ("score the base on the selection split", ("task",)),
    "train": ("post-train an adapter; continues where an interrupted run stopped", ("task", "method", "seed")),
    "evaluate": ("score every checkpoint on the selection split", ("task", "method", "seed")),
    "select": ("copy the best checkpoint to runs/<task>/<method>/<seed>/best", ("task", "method", "seed")),
    "test": ("score base and best once on test, paired", ("task", "method", "seed")),
    "report": ("draw accuracy, training curves and a denoising trajectory", ("task", "method", "seed")),
    "verify_teacher": ("pass@1, pass@8 and self-teacher accuracy of the base (paper, Table 1)", ("task",)),
}
EPILOG = """the pipeline: `dvc repro` runs the stages that changed; `make demo` runs it and publishes to MLflow.
Settings are in params.yaml; `dopsd check` says whether they are sound."""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("dopsd", description=__doc__.split(":")[0], epilog=EPILOG)
    parser.description = "Post-train diffusion language models by on-policy self-distillation (d-OPSD)."
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for name, (help_text, arguments) in STAGES.items():
        stage = _command(commands, name, help_text)
        for argument in arguments:
            _cell_argument(stage, argument)
    _command(commands, "check", "read params.yaml and report what is wrong in it")
    _command(commands, "summary", "one screen: base against trained, cost, where things are")
    _command(commands, "publish", "copy finished runs, checkpoints and the champion to MLflow; safe to repeat")
    _command(commands, "clean", "remove scratch folders of settings no longer in params.yaml from work/")
    follow = commands.add_parser("follow")  # started by training, not by people: no help line
    follow.add_argument("--params", type=Path, default=Path("params.yaml"))
    for argument in ("task", "method", "seed"):
        _cell_argument(follow, argument)
    sample = _command(commands, "sample", "print a model's answer to a puzzle, step by step")
    sample.add_argument("problem", nargs="?", help="a puzzle, 16 digits with 0 for blanks (default: the first test problem)")
    _cell_argument(sample, "task")
    sample.add_argument("--adapter", type=Path, help="a checkpoint folder (default: the base model)")
    sample.add_argument("--temperature", type=float, default=0.0)
    sample.add_argument("--seed", type=int, default=0)
    return parser


def _command(commands: argparse._SubParsersAction, name: str, help_text: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=help_text, description=f"{help_text}.")
    parser.add_argument("--params", type=Path, default=Path("params.yaml"), help="settings (default: params.yaml)")
    return parser


def _cell_argument(parser: argparse.ArgumentParser, name: str) -> None:
    if name == "seed":
        parser.add_argument("--seed", type=int, default=0, help="seed of the run (default 0)")
    else:
        default = {"task": "sudoku", "method": "d_opsd"}[name]
        parser.add_argument(f"--{name}", default=default, help=f"{name} (default {default})")


def _check_names(arguments: argparse.Namespace, params: Params) -> None:
    """A task or method that does not exist is refused before anything is imported for it."""
    for name, section in (("task", params.data), ("method", params.method)):
        known = sorted(type(section).model_fields)
        value = vars(arguments).get(name)
        if value is not None and value not in known:
            raise DopsdError(f"--{name} {value}: unknown; there is {', '.join(known)}")


def dispatch(arguments: argparse.Namespace) -> None:
    params = load_params(arguments.params)
    _check_names(arguments, params)
    if arguments.command in STAGES:
        stage: Callable[..., object] = import_module(f"dopsd.stages.{arguments.command}").run
        stage(params, *(vars(arguments)[name] for name in STAGES[arguments.command][1]))
    elif arguments.command == "check":
        print(f"{arguments.params}: sound")
    elif arguments.command == "sample":
        from dopsd.show import sample

        sample(params, arguments.task, arguments.problem, arguments.adapter, arguments.temperature, arguments.seed)
    elif arguments.command == "follow":
        from dopsd.publish import follow

        follow(params, arguments.task, arguments.method, arguments.seed)
    else:
        module = {"summary": "dopsd.show", "publish": "dopsd.publish", "clean": "dopsd.runfolder"}[arguments.command]
        vars(import_module(module))[{"publish": "run"}.get(arguments.command, arguments.command)](params)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = build_parser().parse_args(argv)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        dispatch(arguments)
    except DopsdError as error:
        print(f"dopsd: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("dopsd: interrupted; the same command continues", file=sys.stderr)
        return 130
    except OSError as error:
        advice = "free some space" if error.errno == errno.ENOSPC else "mend that"
        print(f"dopsd: {error.strerror or error}: {error.filename}; {advice} and run the same command", file=sys.stderr)
        return 2
    return 0
