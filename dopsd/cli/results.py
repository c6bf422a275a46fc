"""Commands on finished runs: their summary, comparison and ablation, MLflow, and what may go."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dopsd.cli.arguments import cell_argument, command
from dopsd.core.errors import DopsdError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from dopsd.cli.arguments import Commands
    from dopsd.config.params import Params


def add_results(commands: Commands) -> None:
    command(commands, "summary", "one screen: base against trained, cost, where things are")
    command(
        commands,
        "publish",
        "copy finished runs, checkpoints and the champion to MLflow; safe to repeat",
    )
    baselines = command(
        commands, "baselines", "copy published accuracies to MLflow, to stand beside your own"
    )
    baselines.add_argument("action", choices=("import",))
    command(
        commands, "clean", "remove scratch folders of settings no longer in params.yaml from work/"
    )
    compare = command(
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
    ablate = command(
        commands,
        "ablate",
        "train a method with one setting changed at a time, and lay that side by side",
    )
    ablate.add_argument(
        "tables", nargs="*", metavar="NAME", help="of params.yaml's ablate.tables (none: list them)"
    )
    follow = commands.add_parser("follow")  # started by training, not by people: no help line
    follow.add_argument("--params", type=Path, default=Path("params.yaml"))
    for argument in ("task", "method", "seed"):
        cell_argument(follow, argument)


def _summary(_: argparse.Namespace, params: Params) -> None:
    from dopsd.cli.show import summary

    summary(params)


def _publish(_: argparse.Namespace, params: Params) -> None:
    from dopsd.pipeline.stages.publish import run

    run(params)


def _baselines(_: argparse.Namespace, params: Params) -> None:
    from dopsd.tracking.baselines import import_published

    import_published(params.tracking)


def _clean(_: argparse.Namespace, params: Params) -> None:
    from dopsd.pipeline.cleaning import clean

    clean(params)


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
    "summary": _summary,
}
