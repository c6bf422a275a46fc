"""`dopsd COMMAND`: parse arguments, run the command, turn failures into one line and an exit code.

Heavy packages are imported inside the commands, so that `dopsd --help` stays fast.
"""

import argparse
import errno
import os
import signal
import sys
from collections.abc import Sequence

import dopsd
from dopsd.algorithms.common.config import BETWEEN
from dopsd.algorithms.registry import unknown_method
from dopsd.cli import checkpoints, explain, results, runs, settings, stages
from dopsd.cli.launch import add_launch, begin, is_on_nodes
from dopsd.cli.parser import CLOSING, SHELLS, Formatter, Parser, PrintCompletion, overview
from dopsd.cli.stages import DVC, PARALLEL, STAGES
from dopsd.config.loading import load_params
from dopsd.config.params import Params
from dopsd.core.environment import bypass_proxies, name_user, refuse_leftovers
from dopsd.core.errors import Code, DopsdError, of_system, unknown
from dopsd.core.files import WORK
from dopsd.core.paths import REPORTS, RUNS
from dopsd.core.processes import ENDS_WITH_INPUT, end_with_input, end_with_starter
from dopsd.core.progress import is_main_rank, log, outlive_readers, refuse_cut_output
from dopsd.distributed.launch import (
    accept_signals,
    is_started,
    launch,
    use_expandable_segments,
)
from dopsd.pipeline.recipes import unchanged

VERSION: str = dopsd.__version__
SIGNALLED = 128  # exit codes from here on: ended by a signal
SMALLER = (
    "lower train.micro_batch_states, sampling.batch_size or the protocol's batch_size, or set"
    " train.gradient_checkpointing; then the same command continues from the last checkpoint"
)
# may use the Hugging Face hub
ONLINE = ("inspect", "launch", "prepare", "push", "rehearse", "repro", "run", "task")
# commands whose result is what they print
PRINTING = (
    *("check", "compare", "doctor", "estimate", "explain", "inspect", "models", "sample", "score"),
    *("summary", "task"),
)
# commands that do not read params.yaml first, and those that do
FREE = settings.FREE | checkpoints.FREE | runs.FREE | explain.FREE
WITH_PARAMS = settings.WITH_PARAMS | results.WITH_PARAMS | checkpoints.WITH_PARAMS


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands; dopsd/cli/parser.py groups them for `dopsd --help`."""
    parser = Parser(
        "dopsd",
        usage="dopsd COMMAND ...",
        description=overview(),
        epilog=CLOSING,
        formatter_class=Formatter,
        add_help=False,
    )
    parser.add_argument("-h", "--help", action="help", help=argparse.SUPPRESS)
    parser.add_argument("--version", action="version", version=VERSION, help=argparse.SUPPRESS)
    parser.add_argument(
        "--print-completion", action=PrintCompletion, choices=SHELLS, help=argparse.SUPPRESS
    )
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="command", help=argparse.SUPPRESS, prog="dopsd"
    )
    runs.add_runs(commands)
    stages.add_stages(commands)
    add_launch(commands)
    settings.add_checks(commands)
    settings.add_task(commands)
    results.add_results(commands)
    checkpoints.add_checkpoints(commands)
    checkpoints.add_push(commands)
    settings.add_profiles(commands)
    checkpoints.add_bases(commands)
    explain.add_explain(commands)
    for added in commands.choices.values():
        added.formatter_class = Formatter
    return parser


def _complete(arguments: argparse.Namespace, params: Params) -> None:
    """Fill in task, method and seed from the matrix, and refuse names that do not exist.

    Names are checked before anything heavy is imported for them.
    """
    arguments.names_run = any(vars(arguments).get(name) is not None for name in ("method", "seed"))
    for name, listed in (
        ("task", params.matrix.tasks),
        ("method", params.matrix.methods),
        ("seed", params.matrix.seeds),
    ):
        if name in vars(arguments) and vars(arguments)[name] is None:
            setattr(arguments, name, listed[0])
    for name, choices in (
        ("task", params.tasks),
        ("method", params.methods),
    ):
        value = vars(arguments).get(name)
        if value is not None and value not in choices:
            listed = [choice for choice in choices if BETWEEN not in choice]
            line = (
                unknown_method("--method", value, listed) + "; variants: `dopsd ablate`"
                if name == "method"
                else unknown(f"--{name} {value}", listed)
            )
            raise Code.UNKNOWN_NAME.error(line)


def refuse_files(arguments: argparse.Namespace) -> None:
    """Refuse a file or a dangling link where a stage will make a folder, before it works.

    Raises:
        NotADirectoryError: with the path of the file.
    """
    parts = [str(vars(arguments).get(name) or "") for name in ("task", "method", "seed")]
    for folder in (WORK, REPORTS, RUNS.joinpath(*parts)):
        for path in (*reversed(folder.parents), folder):
            if os.path.lexists(path) and not path.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))


def dispatch(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    if arguments.command in DVC:
        from dopsd.pipeline.dvc.command import run

        return run(words)
    if arguments.command == "launch":
        return begin(arguments, main)
    if arguments.command in FREE:
        FREE[arguments.command](arguments)
        return 0
    if arguments.command in (*STAGES, *PARALLEL):
        refuse_leftovers()
    params = load_params(arguments.params)
    _complete(arguments, params)
    if arguments.command in STAGES:
        refuse_files(arguments)
    _say_old_problems(arguments, params)
    if arguments.command in PARALLEL and (params.launch.processes > 1 or is_on_nodes()):
        from dopsd.tasks.registry import load_task

        if not is_started():
            default_split = {"train": "train", "test": "test"}.get(
                arguments.command, params.select.split
            )
            split = vars(arguments).get("split") or default_split
            # missing data is reported once, before any process starts
            load_task(arguments.task, params.data.tasks[arguments.task]).load(split)
            return launch(params.launch, words)
    if arguments.command == "adapt":
        return _adapt(arguments, params)
    if arguments.command in STAGES:
        with unchanged(arguments.params, params):
            stages.run_stage(arguments, params)
    else:
        WITH_PARAMS[arguments.command](arguments, params)
    return 0


def _say_old_problems(arguments: argparse.Namespace, params: Params) -> None:
    """Warn where a stage would use problems that were prepared with other settings."""
    from dopsd.pipeline.stages.prepare import changed_since

    uses = arguments.command in ("adapt", "evaluate_base", "train") and is_main_rank()
    if uses and (note := changed_since(params, arguments.task)):
        log(f"warning: {note}")


def _adapt(arguments: argparse.Namespace, params: Params) -> int:
    """Convert a model, train it as `dopsd train` does, write the base; return the exit code."""
    from dopsd.pipeline.stages import adapt as stage

    with unchanged(arguments.params, params):
        keys = stage.begin(params, arguments.task)
        for key in keys:
            stage.announce(params, key)
            if code := main(["train", *key.words, "--params", str(arguments.params)]):
                return code
        if keys:
            stage.finish(params, arguments.task)
        return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run `dopsd ARGV` and return its exit code; without `argv`, run the process' own arguments."""
    if argv is None:
        outlive_readers()
        if os.environ.pop(ENDS_WITH_INPUT, ""):
            end_with_input(signal.SIGINT)
        accept_signals()
    words = list(sys.argv[1:] if argv is None else argv)
    parser = build_parser()
    if empty := [
        word for word in words if word.startswith("--") and word.endswith("=--")
    ]:  # argparse makes a list of it
        parser.error(f"argument {empty[0][:-3]}: expected a value")
    try:
        if not words:
            parser.print_help()
            refuse_cut_output()
            return 0
        arguments = parser.parse_args(words)
    except OSError as error:  # of standard output
        return _report(of_system(error))
    arguments.command = arguments.command.replace("-", "_")
    if arguments.command in (*STAGES, *DVC):
        end_with_starter()
    use_expandable_segments()
    bypass_proxies()
    name_user()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if arguments.command not in ONLINE:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    return _ended(arguments, words)


def _ended(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    """Run the command; turn a failure into one line and an exit code."""
    try:
        status = dispatch(arguments, words)
        if arguments.command in PRINTING:
            refuse_cut_output()
        return status
    except DopsdError as error:
        rank = os.environ.get("RANK", "0")
        # a signal reaches all processes: only the first one reports it
        if rank == "0" or error.exit_code < SIGNALLED:
            process = f"process {rank}: " if rank != "0" else ""
            print(f"dopsd: {process}{error.coded}", file=sys.stderr)
        return error.exit_code
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # torch's, which is not imported here
            raise
        message = f"{' '.join(str(error).split())[:160]}; {SMALLER}"
        return _report(Code.OUT_OF_MEMORY.error(message, 1))
    except KeyboardInterrupt:
        line = "interrupted; the same command continues"
        return _report(Code.INTERRUPTED.error(line, 130))
    except OSError as error:
        return _report(of_system(error))


def _report(error: DopsdError) -> int:
    """Print an error's line, and return its exit code."""
    print(f"dopsd: {error.coded}", file=sys.stderr)
    return error.exit_code
