"""`dopsd <command>`: arguments to run(params); what is heavy is imported inside the commands."""

from __future__ import annotations

import errno
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from dopsd.algorithms.common.config import BETWEEN
from dopsd.cli.arguments import DVC, MEASURED, ONLINE, PARALLEL, STAGES, build_parser
from dopsd.config.loading import load_params, missing_files
from dopsd.core.errors import TEMPORARY, DopsdError, readable
from dopsd.core.progress import log, outlive_readers
from dopsd.distributed.launch import accept_signals, end_with_parent, is_started, launch
from dopsd.pipeline.unchanged import unchanged

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from dopsd.config.params import Params

SIGNALLED = 128  # statuses from here on: ended by a signal
MISTAKES = (
    FileNotFoundError,
    FileExistsError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
)
SMALLER = (
    "lower train.micro_batch_states, sampling.batch_size or the protocol's batch_size, or set"
    " train.gradient_checkpointing; the same command then continues from the last checkpoint"
)


def _complete(arguments: argparse.Namespace, params: Params) -> None:
    """What was not named is the first of the matrix; what does not exist is refused before anything
    is imported for it.
    """
    for name, listed in (
        ("task", params.matrix.tasks),
        ("method", params.matrix.methods),
        ("seed", params.matrix.seeds),
    ):
        if name in vars(arguments) and vars(arguments)[name] is None:
            setattr(arguments, name, listed[0])
    for name, choices in (
        ("task", sorted(type(params.data).model_fields)),
        ("method", params.methods),
    ):
        value = vars(arguments).get(name)
        if value is not None and value not in choices:
            variants = "; variants: `dopsd ablate`" if name == "method" else ""
            listed = [choice for choice in choices if BETWEEN not in choice]
            raise DopsdError(f"--{name} {value}: unknown; there is {', '.join(listed)}{variants}")


def _write_profile(a: argparse.Namespace) -> None:
    from dopsd.config.profiles import overruled, params

    changed = params(a.profile, a.preset, a.hardware, a.changes, a.params)
    print("\n".join(changed) if changed else f"{a.params}: nothing to change")
    for line in overruled(load_params(a.params), a.changes):
        log(f"note: {line}")


def _rehearse(a: argparse.Namespace) -> None:
    from dopsd.pipeline.rehearse import rehearse

    rehearse(a.profile, a.preset, a.hardware, a.changes, a.params)


def _score(a: argparse.Namespace) -> None:
    from dopsd.evaluation.score_files import run

    run(a.task, a.files, a.scoring, a.as_json, a.verdicts)


def _doctor(a: argparse.Namespace) -> None:
    from dopsd.pipeline.doctor import doctor

    doctor(a.params)


FREE: dict[
    str, Callable[[argparse.Namespace], None]
] = {  # commands that do not read params.yaml first
    "params": _write_profile,
    "doctor": _doctor,
    "rehearse": _rehearse,
    "score": _score,
}


def _check(a: argparse.Namespace, params: Params) -> None:
    from dopsd.training.origin import mismatch

    path = a.params
    faults = [f"{path}: {line}: no such file" for line in missing_files(params)]
    faults += [
        reason
        for task in params.pretrain.tasks
        if (reason := mismatch(params.embedded_base(task), task))
    ]
    if faults:
        raise DopsdError(faults)
    print(f"{path}: sound")


def _export(a: argparse.Namespace, params: Params) -> None:
    if a.out and a.out.exists():
        raise DopsdError(f"--out {a.out}: is there already; name a new folder or remove it")
    _require_adapter_config(a.adapter)
    from dopsd.pipeline.export import export

    export(a.model or params.model_of(a.task).path, a.adapter, a.out, a.dtype, a.merged)


def _require_adapter_config(folder: Path | None) -> None:
    """Said before the heavy imports."""
    if folder and not (folder / "adapter_config.json").is_file():
        raise DopsdError(
            f"--adapter {folder}: no adapter_config.json in it; expected a checkpoint folder of"
            " `dopsd train`"
        )


def _measure(a: argparse.Namespace, params: Params) -> None:
    _require_adapter_config(a.adapter)
    from dopsd.pipeline.evaluate_checkpoint import Request, measure

    overrides = {name: vars(a)[name] for name in MEASURED if vars(a)[name] is not None}
    measure(params, Request(a.task, **overrides), a.json)


def dispatch(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    if arguments.command in DVC:
        from dopsd.pipeline.dvc import run

        return run(words)
    if arguments.command in FREE:
        FREE[arguments.command](arguments)
        return 0
    params = load_params(arguments.params)
    _complete(arguments, params)
    if arguments.command in PARALLEL and params.launch.processes > 1:
        from dopsd.tasks.registry import load_task

        if not is_started():
            default_split = {"train": "train", "test": "test"}.get(
                arguments.command, params.select.split
            )
            split = vars(arguments).get("split") or default_split
            load_task(arguments.task, vars(params.data)[arguments.task]).load(
                split
            )  # what is missing is said once, before any process starts
            return launch(params.launch.processes, words)
    if arguments.command in STAGES:
        with unchanged(arguments.params, params):
            _run_stage(arguments, params)
    else:
        WITH_PARAMS[arguments.command](arguments, params)
    return 0


def _run_stage(arguments: argparse.Namespace, params: Params) -> None:
    if arguments.command == "evaluate" and (
        arguments.json or any(vars(arguments)[name] is not None for name in MEASURED)
    ):
        _measure(arguments, params)
    elif arguments.command == "evaluate" and arguments.update:
        from dopsd.pipeline.evaluate_updates import evaluate_updates

        evaluate_updates(params, arguments.task, arguments.method, arguments.seed, arguments.update)
    elif arguments.command == "train":
        from dopsd.pipeline.stages.train import run
        from dopsd.training.run_identity import answer_of

        answer = answer_of(arguments.other_code)
        run(params, arguments.task, arguments.method, arguments.seed, answer, arguments.adopt)
    else:
        stage: Callable[..., object] = import_module(
            f"dopsd.pipeline.stages.{arguments.command}"
        ).run
        stage(params, *(vars(arguments)[name] for name in STAGES[arguments.command][1]))


def _baselines(_: argparse.Namespace, params: Params) -> None:
    from dopsd.tracking.baselines import import_published

    import_published(params.tracking)


def _compare(a: argparse.Namespace, params: Params) -> None:
    from dopsd.pipeline.compare import print_comparison

    print_comparison(params, a.runs, a.out)


def _ablate(a: argparse.Namespace, params: Params) -> None:
    if a.params != Path("params.yaml"):
        raise DopsdError(
            f"--params {a.params}: variants run through DVC, which reads params.yaml; put it there"
        )
    from dopsd.pipeline.ablate import ablate

    ablate(params, a.tables)


def _sample(a: argparse.Namespace, params: Params) -> None:
    from dopsd.cli.show import sample

    sample(params, a.task, a.problem, a.adapter, a.temperature, a.seed)


def _summary(_: argparse.Namespace, params: Params) -> None:
    from dopsd.cli.show import summary

    summary(params)


def _publish(_: argparse.Namespace, params: Params) -> None:
    from dopsd.pipeline.stages.publish import run

    run(params)


def _clean(_: argparse.Namespace, params: Params) -> None:
    from dopsd.pipeline.cleaning import clean

    clean(params)


def _follow(a: argparse.Namespace, params: Params) -> None:
    from dopsd.tracking.log_uploader import run_log_uploader

    run_log_uploader(params.run(a.task, a.method, a.seed), params.tracking)


WITH_PARAMS: dict[str, Callable[[argparse.Namespace, Params], None]] = {
    "ablate": _ablate,
    "baselines": _baselines,
    "check": _check,
    "clean": _clean,
    "compare": _compare,
    "export": _export,
    "follow": _follow,
    "publish": _publish,
    "sample": _sample,
    "summary": _summary,
}


def _explained(error: OSError) -> str:
    """What the system said, and of which files; an error of the network or of the working directory
    names none.
    """
    files = [str(name) for name in (error.filename, error.filename2) if name is not None]
    if not files and isinstance(error, FileNotFoundError):
        files = ["the working directory, or a program"]
    return ": ".join([error.strerror or str(error) or type(error).__name__, *files])


def main(argv: Sequence[str] | None = None) -> int:
    if argv is None:
        outlive_readers()
        accept_signals()
    words = list(sys.argv[1:] if argv is None else argv)
    parser = build_parser()
    if empty := [
        word for word in words if word.startswith("--") and word.endswith("=--")
    ]:  # argparse makes a list of it
        parser.error(f"argument {empty[0][:-3]}: expected a value")
    arguments = parser.parse_args(words)
    arguments.command = arguments.command.replace("-", "_")
    if arguments.command in (*STAGES, *DVC):
        end_with_parent()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if arguments.command not in ONLINE:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    return _ended(arguments, words)


def _ended(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    """Run the command; a failure becomes one line and an exit status."""
    try:
        return dispatch(arguments, words)
    except DopsdError as error:
        rank = os.environ.get("RANK", "0")
        if (
            rank == "0" or error.exit_code < SIGNALLED
        ):  # a signal reaches all processes: one of them says it
            print(f"dopsd: {f'process {rank}: ' if rank != '0' else ''}{error}", file=sys.stderr)
        return error.exit_code
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # torch's, which is not imported here
            raise
        print(f"dopsd: {' '.join(str(error).split())[:160]}; {SMALLER}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("dopsd: interrupted; the same command continues", file=sys.stderr)
        return 130
    except OSError as error:
        advice = "free some space" if error.errno == errno.ENOSPC else "mend that"
        print(
            f"dopsd: {readable(_explained(error))}; {advice} and run the same command",
            file=sys.stderr,
        )
        return (
            2
            if isinstance(error, MISTAKES) or error.errno in (errno.ENAMETOOLONG, errno.ELOOP)
            else TEMPORARY
        )
