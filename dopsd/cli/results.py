"""Commands on finished runs: summary, restoring, comparison, ablation, MLflow and cleaning."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from dopsd.cli.arguments import cell_argument, command
from dopsd.core.errors import Code, unknown
from dopsd.core.extras import require

if TYPE_CHECKING:
    from dopsd.cli.arguments import Commands
    from dopsd.config.params import Params


def add_results(commands: Commands) -> None:
    """Add the commands on finished runs, and the hidden follow."""
    summary = command(
        commands,
        "summary",
        "Print accuracy of base and trained model on test, cost and paths of finished runs.",
    )
    summary.add_argument(
        "--previous",
        action="store_true",
        help="show the results that runs with other settings have replaced",
    )
    restore = command(
        commands,
        "restore",
        "Bring back the results of a run, and their settings, that other settings have replaced."
        " Today's results can be brought back the same way.",
    )
    restore.add_argument("run", metavar="task/method/seed", help="the run, as `summary` names it")
    command(
        commands,
        "publish",
        "Copy finished runs, checkpoints and the champion to MLflow. It is safe to repeat.",
    )
    baselines = command(
        commands, "baselines", "Copy published accuracies to MLflow, for comparison with your runs."
    )
    baselines.add_argument("action", choices=("import",), help="the only action")
    command(
        commands,
        "clean",
        "Remove training folders from work/ that no run of params.yaml continues.",
    )
    compare = command(
        commands,
        "compare",
        "Put finished runs side by side, with paired intervals and accuracy against cost.",
    )
    compare.add_argument(
        "runs",
        nargs="*",
        metavar="task/method/seed",
        help="runs to compare (default: all finished ones of params.yaml's matrix)",
    )
    compare.add_argument(
        "--out",
        type=Path,
        default=Path("reports/compare"),
        metavar="FOLDER",
        help="folder to write (default: reports/compare)",
    )
    ablate = command(
        commands,
        "ablate",
        "Train a method with one setting changed at a time, then compare the results.",
    )
    ablate.add_argument(
        "tables",
        nargs="*",
        metavar="NAME",
        help="tables of ablate.tables to make (default: none, list them)",
    )
    follow = commands.add_parser("follow")  # hidden: training starts it, not a person
    follow.add_argument("--params", type=Path, default=Path("params.yaml"))
    for argument in ("task", "method", "seed"):
        cell_argument(follow, argument)


def _summary(a: argparse.Namespace, params: Params) -> None:
    from dopsd.pipeline.results.summary import previous, summary

    print(previous(params) if a.previous else summary(params))


def _restore(a: argparse.Namespace, params: Params) -> None:
    from dopsd.pipeline.dvc.previous import restore

    keys = {str(run.key): run.key for run in params.runs}
    if a.run not in keys:
        raise Code.UNKNOWN_NAME.error(unknown(f"restore: {a.run}", keys))
    print("\n".join(f"restore: {line}" for line in restore(keys[a.run])))


def _publish(_: argparse.Namespace, params: Params) -> None:
    from dopsd.pipeline.results.run_report import refresh
    from dopsd.tracking.publish import publish
    from dopsd.tracking.publish_run import Publication

    if params.tracking.enabled:
        require("publish", "mlflow")
        refresh(params, [run.key for run in params.runs if run.key.is_tested], "publish")
    publish(Publication(params.tracking, params.runs, params.evaluate, params.select))


def _baselines(_: argparse.Namespace, params: Params) -> None:
    from dopsd.tracking.baselines import import_published

    import_published(params.tracking)


def _clean(_: argparse.Namespace, params: Params) -> None:
    from dopsd.pipeline.dvc.cleaning import clean

    clean(params)


def _compare(a: argparse.Namespace, params: Params) -> None:
    from dopsd.analysis.tables import print_markdown
    from dopsd.pipeline.results.compare import compare

    print_markdown(compare(params, a.runs, a.out))


def _ablate(a: argparse.Namespace, params: Params) -> None:
    if a.params != Path("params.yaml"):
        raise Code.OPTIONS.error(
            f"--params {a.params}: variants run through DVC, which reads params.yaml; copy the"
            " settings there"
        )
    from dopsd.pipeline.results.ablate import ablate

    ablate(params, a.tables)


def _follow(a: argparse.Namespace, params: Params) -> None:
    from dopsd.tracking.log_uploader import run_log_uploader

    run_log_uploader(params.run(a.task, a.method, a.seed), params.tracking)


WITH_PARAMS: dict[str, Callable[[argparse.Namespace, Params], None]] = {
    "ablate": _ablate,
    "baselines": _baselines,
    "clean": _clean,
    "compare": _compare,
    "follow": _follow,
    "publish": _publish,
    "restore": _restore,
    "summary": _summary,
}
