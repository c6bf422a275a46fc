"""Commands that run one stage of the pipeline, and the two that run DVC."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from dopsd.cli.arguments import cell_argument, command, count, require_adapter_config, temperature
from dopsd.core.environment import refuse_while_collecting
from dopsd.core.errors import Code
from dopsd.core.paths import RunKey

if TYPE_CHECKING:
    from dopsd.cli.arguments import Commands
    from dopsd.config.params import Params

STAGES = {  # stage: (description, arguments beyond --params)
    "prepare": ("Write the problems of every split to data/<task>/.", ("task",)),
    "pretrain": (
        (
            "Train the embedded base model into base/<task>/. DOPSD_ALLOW_RETRAIN=1 in the"
            " environment lets it replace a base that does not match params.yaml."
        ),
        ("task",),
    ),
    "adapt": (
        "Turn the autoregressive model adapt.source into the base model.path. The source is Llama,"
        " Qwen2 or Qwen3, in a folder or a GGUF file. An interrupted run continues from its last"
        " checkpoint.",
        ("task",),
    ),
    "evaluate_base": ("Score the base model on the selection split (select.split).", ("task",)),
    "train": (
        "Post-train an adapter, or all weights. An interrupted run continues from its last"
        " checkpoint.",
        ("task", "method", "seed"),
    ),
    "evaluate": (
        (
            "Score every checkpoint of a run on the selection split (select.split), or one"
            " checkpoint under any protocol."
        ),
        ("task", "method", "seed"),
    ),
    "select": (
        "Copy the best checkpoint to runs/<task>/<method>/<seed>/best.",
        ("task", "method", "seed"),
    ),
    "test": (
        "Score the base and the best checkpoint once on the test split, paired by problem.",
        ("task", "method", "seed"),
    ),
    "report": (
        (
            "Draw accuracy, training curves and one denoising trajectory into"
            " reports/<task>/<method>/<seed>/. Write all of it into one HTML file too,"
            " reports/<task>-<method>-<seed>.html."
        ),
        ("task", "method", "seed"),
    ),
    "record": (
        "Record the order in which the base would write each training answer (method d3llm).",
        ("task",),
    ),
    "verify_teacher": (
        "Measure pass@1, pass@k and self-teacher accuracy of the base (paper, Table 1).",
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
        "Run the stages that changed, as DVC's `repro` does. A second writer of this workspace"
        " waits."
    ),
    "commit": (
        "Record results that were made without DVC, as DVC's `commit` does. A second writer waits."
    ),
}


def add_stages(commands: Commands) -> None:
    """Add a command for every stage, and those that run DVC."""
    for name, (description, arguments) in STAGES.items():
        stage = command(commands, name, description, *ALIASES.get(name, ()))
        for argument in arguments:
            cell_argument(stage, argument)
        if name == "train":
            _train_arguments(stage)
        if name == "test":
            text = "score only this protocol of the test, beforehand (default: all, and the result)"
            stage.add_argument("--point", metavar="PROTOCOL", help=text)
        if name == "evaluate":
            stage.add_argument(
                "--update",
                type=count,
                nargs="+",
                help="score only these updates' checkpoints, also during training (default: all)",
            )
            _measure_arguments(stage)
    for name, description in DVC.items():
        wrapped = commands.add_parser(
            name, description=description, help=description, add_help=False, prefix_chars="\0"
        )
        wrapped.add_argument("words", nargs="*")


def _train_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the choices for a run that other code began.

    Without a choice training stops at such a run and names both.
    """
    group = parser.add_argument_group(
        "a run that other code began",
        "default: stop. DOPSD_OTHER_CODE=continue or anew in the environment chooses too.",
    )
    answers = group.add_mutually_exclusive_group()
    answers.add_argument(
        "--continue",
        action="store_const",
        const="continue",
        dest="other_code",
        help="continue from its last checkpoint",
    )
    anew_help = "start at update 0. The old run moves to work/aside until `dopsd clean`."
    answers.add_argument(
        "--anew", action="store_const", const="anew", dest="other_code", help=anew_help
    )


def _measure_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `dopsd evaluate` that score one checkpoint on any split and protocol."""
    group = parser.add_argument_group(
        "one checkpoint",
        "Any of these options scores one checkpoint instead of a run. params.yaml gives the rest.",
    )
    group.add_argument(
        "--model", metavar="FOLDER", help="base model folder (default: base of the task)"
    )
    group.add_argument(
        "--adapter",
        type=Path,
        metavar="FOLDER",
        help="checkpoint folder (default: with --method or --seed the run's best, else the base)",
    )
    group.add_argument(
        "--split",
        choices=("train", "validation", "test"),
        help="problems to score on (default: select.split)",
    )
    group.add_argument(
        "--protocol", help="one of evaluate.protocols, or `published` (default: select.protocol)"
    )
    group.add_argument(
        "--gen-length",
        type=count,
        metavar="TOKENS",
        help="tokens of an answer (default: those of the protocol)",
    )
    group.add_argument(
        "--attempts",
        type=count,
        metavar="K",
        help="report pass@K: one greedy attempt, the others at --temperature (default: 1)",
    )
    group.add_argument(
        "--temperature", type=temperature, help="temperature of later attempts (default: 1.0)"
    )
    group.add_argument(
        "--prompt-file",
        metavar="FILE",
        help="text that replaces the task's instructions (default: none)",
    )
    group.add_argument(
        "--merged",
        action="store_const",
        const=True,
        help="add the adapter into the weights, rounded to their dtype (default: off)",
    )
    group.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run_stage(arguments: argparse.Namespace, params: Params) -> None:
    """Run the stage that was asked for, or the variant of `evaluate` that its options select."""
    refuse_while_collecting(arguments.command)
    if arguments.command == "evaluate" and (
        arguments.json or any(vars(arguments)[name] is not None for name in MEASURED)
    ):
        _measure(arguments, params)
    elif arguments.command == "test" and arguments.point:
        from dopsd.pipeline.stages.test import score_point

        key = RunKey(arguments.task, arguments.method, arguments.seed)
        score_point(params, key, arguments.point)
    elif arguments.command == "evaluate" and arguments.update:
        from dopsd.pipeline.checkpoints.evaluate import evaluate_updates

        evaluate_updates(params, arguments.task, arguments.method, arguments.seed, arguments.update)
    elif arguments.command == "train":
        from dopsd.pipeline.stages.train import run
        from dopsd.training.resume import answer_of

        _keep_results(RunKey(arguments.task, arguments.method, arguments.seed))
        answer = answer_of(arguments.other_code)
        run(params, arguments.task, arguments.method, arguments.seed, answer)
    else:
        stage: Callable[..., object] = import_module(
            f"dopsd.pipeline.stages.{arguments.command}"
        ).run
        stage(params, *(vars(arguments)[name] for name in STAGES[arguments.command][1]))
        if arguments.command == "report":
            _write_page(arguments, params)


def _keep_results(key: RunKey) -> None:
    """Keep the results of other settings that this training will replace, and say so.

    The stage's own module does not: what was there before is no dependency of DVC.
    """
    from dopsd.core.progress import log
    from dopsd.pipeline.dvc.previous import keep

    if "RANK" not in os.environ and (replaced := keep(key)):  # before it starts processes
        log(f"train: {replaced}")


def _write_page(a: argparse.Namespace, params: Params) -> None:
    """Write the run's HTML report.

    The stage's own module does not: the page shows seconds, so it is no output of DVC, and its code
    is no dependency.
    """
    from dopsd.core.progress import log
    from dopsd.pipeline.results.run_report import refresh

    for page in refresh(params, [RunKey(a.task, a.method, a.seed)], "report").values():
        log(f"report: {page}")


def _measure(a: argparse.Namespace, params: Params) -> None:
    require_adapter_config(a.adapter)
    from dopsd.pipeline.checkpoints.evaluate import Request, measure

    overrides = {name: vars(a)[name] for name in MEASURED if vars(a)[name] is not None}
    if a.names_run and a.adapter is None:
        overrides["adapter"] = RunKey(a.task, a.method, a.seed).folder / "best"
        if not overrides["adapter"].is_dir():
            raise Code.NO_RESULTS.error(
                f"{overrides['adapter']}: no such folder; run `dopsd select` first, or name a"
                " checkpoint with --adapter, or leave --method and --seed out for the base"
            )
    measure(params, Request(a.task, **overrides), a.json)
