"""Commands on finished runs: summary, comparison, ablation, MLflow and cleaning."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dopsd.cli.arguments import cell_argument, command, count, seed
from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError, unknown

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from dopsd.cli.arguments import Commands
    from dopsd.config.params import Params


def add_results(commands: Commands) -> None:
    """Add the commands on finished runs, and the hidden follow."""
    command(
        commands,
        "summary",
        "Print accuracy of base and trained model on test, cost and paths of finished runs.",
    )
    command(
        commands,
        "publish",
        "Copy finished runs, checkpoints and the champion to MLflow; safe to repeat.",
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
        "Put finished runs side by side: paired intervals, and accuracy against cost.",
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
    _add_tournament(commands)
    follow = commands.add_parser("follow")  # hidden: training starts it, not a person
    follow.add_argument("--params", type=Path, default=Path("params.yaml"))
    for argument in ("task", "method", "seed"):
        cell_argument(follow, argument)


def _add_tournament(commands: Commands) -> None:
    tournament = command(
        commands,
        "tournament",
        (
            "Train many methods on several tasks with equal budgets, tuned alike, and test them"
            " once. A stopped tournament continues with the same command."
        ),
    )
    tournament.add_argument(
        "parts",
        nargs="*",
        metavar="PART",
        help="tune, run, switch, test, or table (default: all of them, in this order)",
    )
    tournament.add_argument(
        "--plan",
        type=Path,
        default=Path("tournament.yaml"),
        metavar="FILE",
        help="tasks, entries, seeds and budgets (default: tournament.yaml)",
    )
    for name, dest, kind in (
        ("task", "tasks", str),
        ("entry", "entries", str),
        ("seed", "seeds", seed),
    ):
        tournament.add_argument(
            f"--{name}",
            dest=dest,
            type=kind,
            action="append",
            default=[],
            metavar=name.upper(),
            help=f"make only runs of this {name}; may be repeated",
        )
    tournament.add_argument(
        "--jobs", type=count, default=1, help="runs side by side, one thread each (default: 1)"
    )
    tournament.add_argument(
        "--minutes", type=count, help="save and end after this time (default: no limit)"
    )


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


def _refuse_other_params(a: argparse.Namespace, advice: str) -> None:
    if a.params != Path("params.yaml"):
        raise DopsdError(f"--params {a.params}: {advice}", code=Code.OPTIONS)


def _ablate(a: argparse.Namespace, params: Params) -> None:
    _refuse_other_params(
        a, "variants run through DVC, which reads params.yaml; copy the settings there"
    )
    from dopsd.pipeline.ablate import ablate

    ablate(params, a.tables)


def _tournament(a: argparse.Namespace, params: Params) -> None:
    from dopsd.pipeline.tournament.cells import TEST
    from dopsd.pipeline.tournament.choice import Chosen
    from dopsd.pipeline.tournament.tournament import PARTS, TABLE, tournament

    _refuse_other_params(a, "a tournament reads params.yaml; put changes in the plan, below tasks")
    known = (*PARTS, TABLE)
    for part in a.parts:
        if part not in known:
            raise DopsdError(unknown(f"tournament: {part}", known), code=Code.UNKNOWN_NAME)
    is_limited = bool(a.tasks or a.entries or a.seeds)  # the test needs all runs
    implied = [part for part in PARTS if not a.parts and not (is_limited and part == TEST)]
    parts = [part for part in PARTS if part in a.parts] or ([] if a.parts else implied)
    chosen = Chosen(a.tasks, a.entries, a.seeds)
    tournament(params, a.plan, parts, chosen, a.jobs, a.minutes)


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
    "tournament": _tournament,
}
