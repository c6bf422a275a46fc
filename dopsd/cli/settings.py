"""Commands about settings, a new project and this machine: init, params, check and so on."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from dopsd.cli.arguments import command, set_argument
from dopsd.config.consistency import every_run
from dopsd.config.loading import load_params
from dopsd.config.named_files import missing_files, start_faults
from dopsd.config.params import Params
from dopsd.config.profiles import HARDWARE, NEEDS_PROFILE, PRESET
from dopsd.core.errors import Code, DopsdError
from dopsd.core.progress import log
from dopsd.core.settings import LARGEST
from dopsd.models.registry import download, named

if TYPE_CHECKING:
    from dopsd.cli.arguments import Commands
    from dopsd.pipeline.estimate.command import Planned

NEXT = """{folder}: ready. Next:
  cd {folder}
  git add -A && git commit -m "Begin"   # settings, pipeline and base
{weights}  dopsd repro                           # runs all stages, as `dvc repro` does
  dopsd summary                         # base and trained model side by side"""
MADE = "; nobody publishes it: `dopsd adapt` makes one, as dopsd's docs/adapt.md says"


def add_checks(commands: Commands) -> None:
    """Add init, check and doctor."""
    description = "Start a project in a new folder: settings, pipeline, flows, base, git and DVC."
    init = commands.add_parser("init", description=description, help=description)
    init.add_argument("folder", metavar="FOLDER", help="a new or an empty folder")
    init.add_argument("--profile", help="whose settings params.yaml gets (default: embedded)")
    _profile_arguments(init)
    command(
        commands,
        "check",
        "Check params.yaml, the rows of its local files and its chats. Every error is reported.",
    )
    command(
        commands,
        "doctor",
        (
            "Check this machine for what params.yaml needs, and give advice. It looks at packages,"
            " GPU, disk, ports, servers, hub and files."
        ),
    )


def add_task(commands: Commands) -> None:
    """Add task, with its actions check and list."""
    task = command(
        commands,
        "task",
        "Check a task of your own that params.yaml defines, or list all tasks.",
    )
    task.add_argument(
        "action",
        choices=("check", "list"),
        help=(
            "check: show prompts, lengths, repeated questions and the scores of given answers."
            " list: show all tasks, or the datasets of reasoning_gym."
        ),
    )
    task.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        help="task to check, or reasoning_gym to list its datasets",
    )
    task.add_argument(
        "--answers",
        type=Path,
        metavar="FILE",
        help="check: score these (.jsonl, .csv, .parquet). Columns: answer, generation, correct.",
    )


PROFILED = {  # commands that take a profile
    "params": "Write the settings of a profile, or change some keys, and print the changes.",
    "estimate": "Estimate hours and memory of a profile on GPUs. Nothing runs.",
    "rehearse": (
        "Estimate the real cost of a profile, then run every stage on a tiny random model."
    ),
}
SHOWN = 12  # changed keys that `dopsd params` prints


def add_profiles(commands: Commands) -> None:
    """Add params, estimate and rehearse, which take the same options."""
    for name, description in PROFILED.items():
        parser = command(commands, name, description)
        parser.add_argument(
            "--profile",
            help=(
                "ready settings: embedded, or BASE-TASK such as a2d-0.6b-gsm8k (default: those of"
                " --params)"
            ),
        )
        _profile_arguments(parser)
        set_argument(parser)


def _profile_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--preset",
        help=(
            "reference: as the published code. paper: as its equations. small: on few problems."
            " fast: reference with a race of checkpoints. (default: reference)"
        ),
    )
    parser.add_argument(
        "--hardware",
        help=(
            "1x80gb, 4x80gb, 8x80gb or 1xh200. For small bases also 1x16gb or cpu. (default:"
            " 1x80gb)"
        ),
    )


def _init(a: argparse.Namespace) -> None:
    from dopsd.pipeline.new_project import create

    if not a.folder:  # as of an unset variable; Path makes it the working directory
        raise Code.ARGUMENT.error("init: expected the name of a folder, found ''")
    if a.profile is None and (a.preset or a.hardware):
        raise Code.PROFILE.error(NEEDS_PROFILE)
    folder = Path(a.folder)
    create(folder, a.profile, a.preset or PRESET, a.hardware or HARDWARE)
    for line in _notes(load_params(folder / "params.yaml"), a.hardware):
        log(f"note: {line}")
    place = f"./{folder}" if str(folder).startswith("-") else str(folder)
    weights, path = "", load_params(folder / "params.yaml").model.path
    if not (folder / path).is_dir():
        print(f"{path}: no weights yet{MADE if _is_made(path) else ''}")
        weights = "" if _is_made(path) else f"  {download(Path(path))}\n  dopsd check\n"
    print(NEXT.format(folder=shlex.quote(place), weights=weights))


def _is_made(path: str) -> bool:
    """Return whether a base is one that nobody publishes."""
    row = named(Path(path))
    return row is not None and bool(row.made_by)


def _write_profile(a: argparse.Namespace) -> None:
    from dopsd.config.params_file import overruled, params, way_back

    if a.profile is None and (a.preset or a.hardware):
        raise Code.PROFILE.error(NEEDS_PROFILE)
    is_new, back = not a.params.exists(), way_back(a.params)
    changed = params(a.profile, a.preset or PRESET, a.hardware or HARDWARE, a.changes, a.params)
    print("\n".join(_written(a, changed, is_new) + back))
    settings = load_params(a.params)
    notes = overruled(settings, a.changes)
    if a.profile or any(change.startswith(("model.", "matrix.")) for change in a.changes):
        notes += _notes(settings, a.hardware)
    for line in notes:
        log(f"note: {line}")


def _notes(settings: Params, hardware: str | None) -> list[str]:
    """Return what to know about new settings: of their base, their matrix and the hardware."""
    from dopsd.config.consistency import SIDE_BY_SIDE, matrix_notes
    from dopsd.config.profiles import at_once
    from dopsd.pipeline.bases.fit import blocks_notes

    runs = at_once(hardware) // settings.launch.processes if hardware else 1
    side_by_side = [SIDE_BY_SIDE.format(count=runs)] if runs > 1 else []
    return blocks_notes(settings) + matrix_notes(settings) + side_by_side


def _written(a: argparse.Namespace, changed: list[str], is_new: bool) -> list[str]:
    """Return lines that name the file and sum up what changed in it."""
    from dopsd.config.params_file import BEFORE

    if not changed:
        return [f"{a.params}: nothing to change"]
    if is_new:
        return [f"{a.params}: written, {len(changed)} settings of profile {a.profile}"]
    keys = "1 key" if len(changed) == 1 else f"{len(changed)} keys"
    lines = [f"{a.params}: {keys} changed; the file as it was: {BEFORE}"]
    lines += [f"  {line}" for line in changed[:SHOWN]]
    rest = len(changed) - SHOWN
    return lines + ([f"  and {rest} more: diff {BEFORE} {a.params}"] if rest > 0 else [])


def _planned(a: argparse.Namespace) -> Planned:
    from dopsd.pipeline.estimate.command import Planned

    return Planned(a.profile, a.preset or PRESET, a.hardware or HARDWARE, a.changes, a.params)


def _estimate(a: argparse.Namespace) -> None:
    from dopsd.pipeline.estimate.command import print_estimate

    print_estimate(_planned(a))


def _rehearse(a: argparse.Namespace) -> None:
    from dopsd.pipeline.estimate.rehearse import rehearse

    rehearse(_planned(a))


def _doctor(a: argparse.Namespace) -> None:
    from dopsd.pipeline.doctor.command import doctor

    doctor(a.params)


def _task(a: argparse.Namespace, params: Params) -> None:
    from dopsd.pipeline.task_check.check import check, list_tasks
    from dopsd.pipeline.task_check.library import list_datasets
    from dopsd.tasks.registry import GYM

    if a.action == "list" and a.name == GYM:
        list_datasets(params)
        return
    if a.action == "list":
        list_tasks(params)
        return
    if a.name is None:
        raise Code.ARGUMENT.error(
            "task check: expected the NAME of a task; `dopsd task list` shows them"
        )
    check(params, a.name, a.answers)


def _check(a: argparse.Namespace, params: Params) -> None:
    from dopsd.config.consistency import matrix_notes
    from dopsd.pipeline.bases.fit import block_faults
    from dopsd.pipeline.run.request import mismatched_bases
    from dopsd.pipeline.task_check.rows import check_rows
    from dopsd.tasks.common.storage import data_files
    from dopsd.training.run_settings import warmup_notes

    path = a.params
    for note in matrix_notes(params):
        print(f"{path}: note: {note}")
    is_idle = bool(params.adapt.source and not params.adapt.tasks)
    missing = [
        f"{path}: {line}: no such file{_remedy(line, is_idle)}" for line in missing_files(params)
    ]
    starts = start_faults(params)
    faults = missing + [f"{path}: {fault}" for fault in starts] + mismatched_bases(params)
    if faults:
        other = starts[0].code if starts else Code.BASE_DIFFERS
        raise DopsdError(faults, code=Code.NAMED_FILE_MISSING if missing else other)
    if unseen := [f"{path}: {line}" for line in block_faults(params)]:
        raise Code.CONTRADICTION.error(unseen)
    row_notes = check_rows(params)
    from dopsd.pipeline.stages.prepare import changed_since

    tasks = params.matrix.tasks
    runs, notes = every_run(params), [n for t in tasks if (n := changed_since(params, t))]
    notes += row_notes + _base_notes(params)
    if params.adapt.tasks:
        from dopsd.pipeline.stages import adapt

        task, seed = params.adapt.tasks[0], params.adapt.seed
        notes += adapt.check(params, task)
        if data_files(task, "train")[0].is_file():
            runs += [params.run(task, name, seed) for name in params.adapt.phases]
    files = {task: data_files(task, "train")[0] for task in tasks}
    counts = {t: len(f.read_bytes().splitlines()) for t, f in files.items() if f.is_file()}
    for run in runs:
        if fault := run.reason_against_problems(counts.get(run.key.task, LARGEST)):
            notes.append(f"{fault}; with the problems on disk it is refused")
        notes += warmup_notes(run, run.train) if run.train.warmup_ratio is None else []
    for note in dict.fromkeys(notes):
        print(f"{path}: note: {note}")
    print(f"{path}: no errors{_missing_sections(params)}{_unseen_bases(params)}")


def _base_notes(params: Params) -> list[str]:
    """Return notes on the chat templates of bases on disk, and on the chats that sft learns."""
    from dopsd.models.template_date import NOTE, is_dated

    paths = dict.fromkeys(Path(params.model_of(task).path) for task in params.matrix.tasks)
    notes = [f"{path}: {NOTE}" for path in paths if is_dated(path)]
    traces = params.method.sft.traces if "sft" in params.matrix.methods else None
    if traces and traces.is_file:
        from dopsd.algorithms.common.chats import check_chats
        from dopsd.models.tokenizer import token_counts

        for base in filter(None, map(token_counts, paths)):
            notes += check_chats(traces, "method.sft.traces", base.plain)[1]
    return notes


def _missing_sections(params: Params) -> str:
    """Return a hint at sections that `dvc repro` would miss in the file."""
    from dopsd.config.params_file import missing

    names = ", ".join(missing(params))
    return f"; `dopsd repro` and `dopsd params` add {names} to it" if names else ""


ROWS = '; put test rows there, such as {"input": "30,100,93", "output": "23"}; d1 published 256'


def _remedy(line: str, is_idle: bool) -> str:
    """Return how to get the missing file of a line, if it is a base's.

    Args:
        is_idle: whether there is a source to adapt, and no task to adapt it to.
    """
    key, _, file = line.partition(": ")
    if key == "adapt.source":
        from dopsd.models.a2d.convert import DOWNLOAD

        return DOWNLOAD
    is_base = key.endswith("model.path") and file.endswith("/config.json")
    if is_base and file.startswith("~"):
        return "; write the whole path, ~ is the shell's"
    if key == "model.path" and is_base and is_idle:
        return "; `dopsd adapt` makes it of adapt.source once adapt.tasks names a task"
    if is_base and _is_made(str(Path(file).parent)):
        return MADE
    if not is_base:
        return ROWS if key == "data.countdown.test.path" else ""
    return f"; download the base: `{download(Path(file).parent)}`; `dopsd models` lists names"


def _unseen_bases(params: Params) -> str:
    """Return a hint at bases that are still to be made, or of which `dopsd check` reads nothing."""
    paths = {params.model_of(task).path for task in params.matrix.tasks}
    names = sorted(path for path in paths if not path.startswith("base/"))
    hints = (
        f"`dopsd inspect {name}` looks into the base"
        if not params.adapt.tasks or name != params.model.path or Path(name).is_dir()
        else f"`dopsd adapt` makes {name}"
        for name in names
    )
    return "".join(f"; {hint}" for hint in hints)


FREE: dict[str, Callable[[argparse.Namespace], None]] = {
    "init": _init,
    "params": _write_profile,
    "doctor": _doctor,
    "estimate": _estimate,
    "rehearse": _rehearse,
}
WITH_PARAMS: dict[str, Callable[[argparse.Namespace, Params], None]] = {
    "check": _check,
    "task": _task,
}
