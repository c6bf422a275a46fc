"""The command line's words: every command, its arguments and their help."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from dopsd.core.errors import readable
from dopsd.core.settings import LARGEST

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction["Parser"]

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
MAX_TEMPERATURE = 100
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
ONLINE = ("prepare", "rehearse")  # may ask the Hugging Face hub for data
EPILOG = """the pipeline: `dopsd repro` runs the stages that changed; `make demo` runs it and publishes to MLflow.
Settings are in params.yaml; `dopsd check` says whether they are sound."""  # noqa: E501


class Parser(argparse.ArgumentParser):
    """Also of every command."""

    def error(self, message: str) -> NoReturn:
        super().error(readable(message))


def build_parser() -> argparse.ArgumentParser:
    parser = Parser("dopsd", epilog=EPILOG)
    parser.description = (
        "Post-train diffusion language models by on-policy self-distillation (d-OPSD)."
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for name, (help_text, arguments) in STAGES.items():
        stage = _command(commands, name, help_text, *ALIASES.get(name, ()))
        for argument in arguments:
            _cell_argument(stage, argument)
        if name == "train":
            _train_arguments(stage)
        if name == "evaluate":
            update_help = "only these checkpoints, into the cache; training may still go on"
            stage.add_argument("--update", type=_count, nargs="+", help=update_help)
            _measure_arguments(stage)
    for name, help_text in DVC.items():
        wrapped = commands.add_parser(name, help=help_text, add_help=False, prefix_chars="\0")
        wrapped.add_argument("words", nargs="*")
    _command(commands, "check", "read params.yaml and report what is wrong in it")
    _command(
        commands,
        "doctor",
        "is this machine ready? packages, GPU, disk, ports, servers, hub, files, and what to do",
    )
    _command(commands, "summary", "one screen: base against trained, cost, where things are")
    _command(
        commands,
        "publish",
        "copy finished runs, checkpoints and the champion to MLflow; safe to repeat",
    )
    baselines = _command(
        commands, "baselines", "copy published accuracies to MLflow, to stand beside your own"
    )
    baselines.add_argument("action", choices=("import",))
    _command(
        commands, "clean", "remove scratch folders of settings no longer in params.yaml from work/"
    )
    compare = _command(
        commands, "compare", "finished runs side by side: paired intervals, accuracy against cost"
    )
    compare.add_argument(
        "runs", nargs="*", metavar="task/method/seed", help="default: params.yaml's matrix"
    )
    compare.add_argument(
        "--out",
        type=Path,
        default=Path("reports/compare"),
        help="folder (default: reports/compare)",
    )
    ablate = _command(
        commands,
        "ablate",
        "train a method with one setting changed at a time, and lay that side by side",
    )
    ablate.add_argument(
        "tables", nargs="*", metavar="NAME", help="of params.yaml's ablate.tables (none: list them)"
    )
    _score_command(commands)
    _export_command(commands)
    follow = commands.add_parser("follow")  # started by training, not by people: no help line
    follow.add_argument("--params", type=Path, default=Path("params.yaml"))
    for argument in ("task", "method", "seed"):
        _cell_argument(follow, argument)
    sample = _command(commands, "sample", "print a model's answer to a problem, step by step")
    problem_help = (
        "a question, or a puzzle of 16 digits with 0 for blanks (default: the first test problem)"
    )
    sample.add_argument("problem", nargs="?", help=problem_help)
    _cell_argument(sample, "task")
    sample.add_argument(
        "--adapter", type=Path, help="a checkpoint folder (default: the base model)"
    )
    sample.add_argument("--temperature", type=_temperature, default=0.0)
    sample.add_argument("--seed", type=_seed, default=0)
    _profile_commands(commands)
    return parser


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
    group.add_argument(
        "--gen-length", type=_count, help="tokens to write (default: the protocol's)"
    )
    group.add_argument(
        "--attempts", type=_count, help="pass@k: the first greedy, others at --temperature"
    )
    group.add_argument("--temperature", type=_temperature, help="of later attempts (default 1.0)")
    group.add_argument("--prompt-file", help="a text that replaces the task's instructions")
    group.add_argument(
        "--merged",
        action="store_const",
        const=True,
        help="add the adapter into the weights (rounded in bfloat16)",
    )
    group.add_argument("--json", action="store_true", help="print JSON")


def _whole(text: str, lowest: int) -> int:
    if not re.fullmatch("[0-9]{1,19}", text) or not lowest <= (value := int(text)) <= LARGEST:
        raise argparse.ArgumentTypeError(
            f"expected a whole number from {lowest} to {LARGEST}, found {text!r}"
        )
    return value


def _count(text: str) -> int:
    return _whole(text, 1)


def _seed(text: str) -> int:
    return _whole(text, 0)


def _temperature(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < MAX_TEMPERATURE:
        raise argparse.ArgumentTypeError(
            f"expected a number from 0 to {MAX_TEMPERATURE}, found {text!r}"
        )
    return value


def _profile_commands(commands: Commands) -> None:
    for name, help_text in (
        ("params", "write the settings of a profile, or change some, and say what changed"),
        (
            "rehearse",
            "run every stage of a profile on a tiny random model, and estimate the real cost",
        ),
    ):
        parser = _command(commands, name, help_text)
        parser.add_argument("--profile", help="ready settings: embedded, or llada-8b-<task>")
        parser.add_argument(
            "--preset",
            default="reference",
            help="reference: the published code; paper: its equations",
        )
        parser.add_argument("--hardware", default="1x80gb", help="1x80gb, 4x80gb or 1xh200")
        parser.add_argument(
            "--set", action="append", default=[], metavar="KEY=VALUE", dest="changes"
        )


def _command(
    commands: Commands, name: str, help_text: str, *aliases: str
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, aliases=aliases, help=help_text, description=f"{help_text}.")
    parser.add_argument(
        "--params", type=Path, default=Path("params.yaml"), help="settings (default: params.yaml)"
    )
    return parser


def _export_command(commands: Commands) -> None:
    parser = _command(
        commands, "export", "write base and adapter as one model that plain transformers loads"
    )
    parser.add_argument("--merged", action="store_true", help="add the adapter into the weights")
    parser.add_argument("--adapter", type=Path, help="a checkpoint folder")
    parser.add_argument("--model", help="base model folder (default: that of the task)")
    _cell_argument(parser, "task")
    parser.add_argument("--out", type=Path, help="a folder that does not exist yet")
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        default="float32",
        help="bfloat16 loses small changes",
    )


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


def _cell_argument(parser: argparse.ArgumentParser, name: str) -> None:
    kind = _seed if name == "seed" else str
    parser.add_argument(
        f"--{name}",
        type=kind,
        help=f"{name} of the run (default: the first of params.yaml's matrix)",
    )
