"""Commands that start, watch and stop a whole run: run, attach, cancel."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from dopsd.cli.arguments import count, seed, set_argument
from dopsd.config.profiles import AS_IT_STANDS, HARDWARE, PRESET
from dopsd.core.errors import Code
from dopsd.core.extras import require
from dopsd.core.progress import log
from dopsd.tracking.client import local_address

if TYPE_CHECKING:
    from dopsd.cli.arguments import Commands
    from dopsd.pipeline.run.request import RunRequest

RUN_HELP = "name of the run, or the first characters of its id (default: the newest in progress)"
SERVERS = (("prefect", "PREFECT_API_URL", "/api"), ("mlflow", "MLFLOW_TRACKING_URI", ""))
OUTDATED = "flows/runs.py"  # a project made by an older release lacks it


def add_runs(commands: Commands) -> None:
    """Add run, attach and cancel."""
    _run_command(commands)
    for name, description in (
        ("attach", "Watch a run that `dopsd run` or Prefect's UI has started. Ctrl-C leaves it."),
        ("cancel", "Stop a run. This command waits until training has saved its last update."),
    ):
        parser = commands.add_parser(name, description=description, help=description)
        parser.add_argument("run", nargs="?", metavar="RUN", help=RUN_HELP)


def _run_command(commands: Commands) -> None:
    description = (
        "Run all stages on Prefect's worker, from data to report and MLflow, and watch them."
        " Settings are checked first. A wrong setting starts nothing. Ctrl-C leaves the view, and"
        " the run goes on."
    )
    parser = commands.add_parser("run", description=description, help=description)
    parser.add_argument(
        "--profile", help="ready settings that replace params.yaml (default: params.yaml as it is)"
    )
    parser.add_argument(
        "--preset", help=f"reference, paper or small, of a profile (default: {PRESET})"
    )
    parser.add_argument("--hardware", help=f"GPUs of a profile (default: {HARDWARE})")
    set_argument(parser)
    parser.add_argument(
        "--updates", type=count, metavar="N", help="updates of every method (train.updates)"
    )
    parser.add_argument("--seeds", type=_seeds, help="seeds to run, such as 0,1 (matrix.seeds)")
    parser.add_argument("--tasks", type=_names, help="tasks to run, such as sudoku (matrix.tasks)")
    parser.add_argument(
        "--methods", type=_names, help="methods, such as d_opsd,rft (matrix.methods)"
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--detach", action="store_true", help="start the run, and do not watch it")
    where.add_argument(
        "--local",
        action="store_true",
        help="run here, without Prefect. Ctrl-C stops the run, and training saves.",
    )


def _names(text: str) -> list[str]:
    """Parse names with commas between them."""
    names = [name.strip() for name in text.split(",")]
    if not all(re.fullmatch(r"[\w-]+", name) for name in names):
        raise argparse.ArgumentTypeError(f"expected names such as a,b, found {text!r}")
    return names


def _seeds(text: str) -> list[int]:
    """Parse seeds with commas between them."""
    return [seed(number.strip()) for number in text.split(",")]


def _request(a: argparse.Namespace) -> RunRequest:
    """Return what the command line asks for."""
    from dopsd.pipeline.run.request import RunRequest, parsed

    overrides = parsed(a.changes) | ({"matrix.tasks": a.tasks} if a.tasks else {})
    return RunRequest(
        profile=a.profile or AS_IT_STANDS,
        preset=a.preset or PRESET,
        hardware=a.hardware or HARDWARE,
        methods=a.methods,
        seeds=a.seeds,
        max_updates=a.updates,
        overrides=overrides,
    )


def _import_flows(command: str) -> None:
    """Make the project's flows importable; they are files of the project, not of the package.

    Without variables that name the servers, they are those that `make up` started here.
    """
    require(command, "prefect")
    if not Path(OUTDATED).is_file():
        raise Code.NOT_A_PROJECT.error(
            f"{command}: {OUTDATED}: no such file; run this in the project's folder, or copy flows/"
            " from a new project of `dopsd init`"
        )
    sys.path.insert(0, str(Path.cwd()))
    # Prefect reads its variable when it is imported
    for service, name, path in SERVERS:
        if address := local_address(service):
            os.environ.setdefault(name, f"{address}{path}")
    try:
        import_module("flows.watching")
    except ImportError as error:
        if not (error.name or "").startswith("dopsd"):
            raise
        raise Code.NOT_A_PROJECT.error(
            f"{command}: flows/ is of another release ({error.msg}); copy flows/ from a new project"
            " of `dopsd init`"
        ) from error


def _run(a: argparse.Namespace) -> None:
    from dopsd.pipeline.run.request import check
    from dopsd.training.pretraining.origin import allowance
    from dopsd.training.resume import answer_of

    request, can_retrain = _request(a), bool(allowance())
    other_code = answer_of(None)
    params = check(request, can_retrain)
    if a.local:
        from dopsd.pipeline.run.local import run_here

        return run_here(request, params)
    _import_flows("run")
    from flows import runs, watching

    choices = {"allow_retrain": can_retrain, "other_code": other_code}
    with runs.connection("run") as client:
        run = runs.submit(client, request.parameters | choices)
        with watching.leaving(run, "run"):
            log(f"run: submitted {run.name}, {runs.page(run.id)}")
            if a.detach:
                print(f"{run.name}\nwatch: dopsd attach {run.name}\nstop: dopsd cancel {run.name}")
            else:
                watching.watch(client, run, "run")


def _attach(a: argparse.Namespace) -> None:
    _import_flows("attach")
    from flows import runs, watching

    with runs.connection("attach") as client:
        watching.watch(client, runs.find(client, "attach", a.run), "attach")


def _cancel(a: argparse.Namespace) -> None:
    _import_flows("cancel")
    from flows import runs

    with runs.connection("cancel") as client:
        run = runs.find(client, "cancel", a.run)
        log(f"cancel: stopping {run.name}; training saves its last finished update")
        saved = runs.cancel(client, run) or "no training was stopped"
        print(f"cancelled {run.name}; {saved}")


FREE: dict[str, Callable[[argparse.Namespace], None]] = {
    "attach": _attach,
    "cancel": _cancel,
    "run": _run,
}
