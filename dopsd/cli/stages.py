"""The pipeline's stages as commands, and the commands that DVC runs."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from dopsd.cli.arguments import cell_argument, command, count, require_adapter_config, temperature

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from dopsd.cli.arguments import Commands
    from dopsd.config.params import Params

STAGES = {  # stage: (help, arguments beyond --params)
    "prepare": ("write the problems of every split to data/<task>/", ("task",)),
    "pretrain": (
        (
            "train the embedded base model into base/<task>/; another one in its place only with"
            " DOPSD_ALLOW_RETRAIN=1"
        ),
        ("task",),
    ),
    "evaluate_base": ("score the base on the selection split", ("task",)),
    "train": (
        "post-train an adapter; continues where an interrupted run stopped",
        ("task", "method", "seed"),
    ),
    "evaluate": (
        "score every checkpoint on the selection split; with the options below: any checkpoint",
        ("task", "method", "seed"),
    ),
    "select": (
        "copy the best checkpoint to runs/<task>/<method>/<seed>/best",
        ("task", "method", "seed"),
    ),
    "test": ("score base and best once on test, paired", ("task", "method", "seed")),
    "report": (
        "draw accuracy, training curves and a denoising trajectory",
        ("task", "method", "seed"),
    ),
    "record": (
        "in which order the base would write each training answer, for the method d3llm",
        ("task",),
    ),
    "verify_teacher": (
        "pass@1, pass@8 and self-teacher accuracy of the base (paper, Table 1)",
        ("task",),
    ),
}
ALIASES = {"verify_teacher": ("verify-teacher",), "evaluate_base": ("evaluate-base",)}
PARALLEL = ("train", "evaluate_base", "evaluate", "test")  # start launch.processes processes
MEASURED = (
    "split",
    "model",
    "adapter",
    "protocol",
    "gen_length",
    "attempts",
    "temperature",
    "prompt_file",
    "merged",
)
DVC = {  # commands that DVC runs, with DVC's own arguments
    "repro": (
        "run the stages that changed (DVC's `repro`), as the only writer of this workspace: others"
        " wait"
    ),
    "commit": "record outputs that were made without DVC (DVC's `commit`), as the only writer",
}


def add_stages(commands: Commands) -> None:
    for name, (help_text, arguments) in STAGES.items():
        stage = command(commands, name, help_text, *ALIASES.get(name, ()))
        for argument in arguments:
            cell_argument(stage, argument)
        if name == "train":
            _train_arguments(stage)
        if name == "evaluate":
            update_help = "only these checkpoints, into the cache; training may still go on"
            stage.add_argument("--update", type=count, nargs="+", help=update_help)
            _measure_arguments(stage)
    for name, help_text in DVC.items():
        wrapped = commands.add_parser(name, help=help_text, add_help=False, prefix_chars="\0")
        wrapped.add_argument("words", nargs="*")


def _train_arguments(parser: argparse.ArgumentParser) -> None:
    """What to do where other code, or an older release, began the run: without an answer training
    stops and says so.
    """
    group = parser.add_argument_group(
        "a run that other code began", "or DOPSD_OTHER_CODE=continue or anew in the environment"
    )
    answers = group.add_mutually_exclusive_group()
    answers.add_argument(
        "--continue",
        action="store_const",
        const="continue",
        dest="other_code",
        help="go on from its last checkpoint",
    )
    anew_help = "start at zero; what was learnt goes to work/aside until `dopsd clean`"
    answers.add_argument(
        "--anew", action="store_const", const="anew", dest="other_code", help=anew_help
    )
    answers.add_argument(
        "--adopt",
        type=Path,
        metavar="FOLDER",
        help="continue work/train-... of a release without run.json",
    )


def _measure_arguments(parser: argparse.ArgumentParser) -> None:
    """What `dopsd evaluate` takes beside the cell of the pipeline: any checkpoint, split and
    protocol.
    """
    group = parser.add_argument_group(
        "any checkpoint", "any of these measures one checkpoint; the rest comes from params.yaml"
    )
    group.add_argument("--model", help="base model folder (default: that of the task)")
    group.add_argument(
        "--adapter", type=Path, help="a checkpoint folder (default: none, the base itself)"
    )
    group.add_argument(
        "--split", choices=("train", "validation", "test"), help="default: select.split"
    )
    group.add_argument(
        "--protocol", help="one of evaluate.protocols, or `published` (default: select.protocol)"
    )
    group.add_argument("--gen-length", type=count, help="tokens to write (default: the protocol's)")
    group.add_argument(
        "--attempts", type=count, help="pass@k: the first greedy, others at --temperature"
    )
    group.add_argument("--temperature", type=temperature, help="of later attempts (default 1.0)")
    group.add_argument("--prompt-file", help="a text that replaces the task's instructions")
    group.add_argument(
        "--merged",
        action="store_const",
        const=True,
        help="add the adapter into the weights (rounded in bfloat16)",
    )
    group.add_argument("--json", action="store_true", help="print JSON")


def run_stage(arguments: argparse.Namespace, params: Params) -> None:
    if arguments.command == "evaluate" and (
        arguments.json or any(vars(arguments)[name] is not None for name in MEASURED)
    ):
        _measure(arguments, params)
    elif arguments.command == "evaluate" and arguments.update:
        from dopsd.pipeline.evaluate_updates import evaluate_updates

        evaluate_updates(params, arguments.task, arguments.method, arguments.seed, arguments.update)
    elif arguments.command == "train":
        from dopsd.pipeline.stages.train import run
        from dopsd.training.run_start import answer_of

        answer = answer_of(arguments.other_code)
        run(params, arguments.task, arguments.method, arguments.seed, answer, arguments.adopt)
    else:
        stage: Callable[..., object] = import_module(
            f"dopsd.pipeline.stages.{arguments.command}"
        ).run
        stage(params, *(vars(arguments)[name] for name in STAGES[arguments.command][1]))


def _measure(a: argparse.Namespace, params: Params) -> None:
    require_adapter_config(a.adapter)
    from dopsd.pipeline.evaluate_checkpoint import Request, measure

    overrides = {name: vars(a)[name] for name in MEASURED if vars(a)[name] is not None}
    measure(params, Request(a.task, **overrides), a.json)
