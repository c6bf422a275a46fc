"""Tables of finished runs in Markdown: rows, means over seeds, paired differences and what they
cost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dopsd.analysis.results import COUNTED, Finished, paired_over_seeds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matplotlib.axes import Axes

RESAMPLED = (
    "Intervals resample problems and seeds: of three seeds they are too narrow where seeds differ"
    " more than problems (they then miss one time in four), of one seed they resample problems"
    " alone and say nothing of other seeds."
)
Difference = tuple[float, tuple[float, float]]  # mean and its 95% interval


def row_of(run: Finished) -> dict[str, Any]:
    """What a run reached and what it cost until its selected checkpoint."""
    tested, update = run.tested, run.selected["update"]
    return {
        "run": str(run),
        "base": tested["base"]["accuracy"],
        "base_interval": tested["base"]["interval"],
        "trained": tested["best"]["accuracy"],
        "trained_interval": tested["best"]["interval"],
        "difference": tested["paired"]["difference"],
        "interval": tested["paired"]["interval"],
        "n": tested["base"]["n"],
        "update": update,
        **run.costs()[update],
    }


def head(*names: str) -> list[str]:
    return [line(*names), "|" + "---|" * len(names)]


def line(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def cost_cells(
    costs: dict[str, float] | None, names: Sequence[str] = (*COUNTED, "seconds")
) -> list[str]:
    """A cell a cost; seconds are not known of a run that came from DVC's cache."""
    if costs is None:
        return ["not reached"] * len(names)
    return [f"{costs[name]:.0f}" if name in costs else "from the cache" for name in names]


def mean_cost(costs: Sequence[dict[str, float]]) -> dict[str, float]:
    """Of the costs that all of them have."""
    return {
        name: sum(c[name] for c in costs) / len(costs)
        for name in costs[0]
        if all(name in c for c in costs)
    }


def groups(runs: list[Finished]) -> dict[tuple[str, str], list[Finished]]:
    runs_by_method: dict[tuple[str, str], list[Finished]] = {}
    for run in runs:
        runs_by_method.setdefault((run.task, run.method), []).append(run)
    return runs_by_method


def percent(share: float) -> str:
    return f"{100 * share:.1f}"


def within(mean: float, interval: Sequence[float]) -> str:
    return f"{percent(mean)} [{percent(interval[0])}, {percent(interval[1])}]"


def chosen_on(run: Finished) -> str:
    """The split that chose the checkpoint, in capitals where that is the test set itself (the
    paper's rule).
    """
    return "THE TEST SET ITSELF" if run.selected["split"] == "test" else run.selected["split"]


def gap(mean: float, interval: Sequence[float]) -> str:
    return f"{100 * mean:+.1f} [{100 * interval[0]:+.1f}, {100 * interval[1]:+.1f}]"


def means(
    runs: list[Finished], resamples: int
) -> Iterator[tuple[str, str, int, Difference, Difference, dict[str, float]]]:
    """Each method's mean test accuracy over seeds, its paired difference to the base, and its mean
    cost.
    """
    for (task, method), group in groups(runs).items():
        gaps = [gaps_between(run.tested["best"], run.tested["base"]) for run in group]
        scores = [run.tested["best"]["per_problem"] for run in group]
        accuracy = paired_over_seeds(
            [[per_problem[name] for name in sorted(per_problem)] for per_problem in scores],
            resamples,
        )
        if len(group) == 1:  # the report's own, which is Wilson's for right and wrong
            accuracy = group[0].tested["best"]["accuracy"], group[0].tested["best"]["interval"]
        cost = mean_cost([run.costs()[run.selected["update"]] for run in group])
        yield task, method, len(group), accuracy, paired_over_seeds(gaps, resamples), cost


def gaps_between(first: dict[str, Any], second: dict[str, Any]) -> list[float]:
    """Differences of two reports' scores, problem by problem."""
    a, b = first["per_problem"], second["per_problem"]
    return [a[name] - b[name] for name in sorted(a)]


def gaps_of(first: list[Finished], second: list[Finished]) -> list[list[float]]:
    """Score of the first's selected checkpoint less the second's, over the seeds that both have. ->
    [seed, problem].
    """
    second_by_seed = {run.seed: run for run in second}
    return [
        gaps_between(run.tested["best"], second_by_seed[run.seed].tested["best"])
        for run in first
        if run.seed in second_by_seed
    ]


def mean_curve(group: list[Finished]) -> list[tuple[float, dict[str, float]]]:
    """Mean accuracy over seeds and mean cost at each checkpoint that all of them have."""
    curves = [dict(run.points()) for run in group]
    shared = [update for update in curves[0] if all(update in curve for curve in curves)]
    costs = [run.costs() for run in group]
    return [
        (sum(c[u] for c in curves) / len(group), mean_cost([c[u] for c in costs]))
        for u in sorted(shared)
    ]


def draw_group(axis: Axes, group: list[Finished], cost: str, colour: str, label: str) -> None:
    """Accuracy against a cost: thin each seed, thick their mean."""
    for run in group:
        points = run.curve(cost)
        if points and len(group) > 1:
            axis.plot(*zip(*points, strict=True), color=colour, lw=0.7, alpha=0.5)
    mean = [(costs[cost], accuracy) for accuracy, costs in mean_curve(group) if cost in costs]
    if mean:
        axis.plot(*zip(*mean, strict=True), color=colour, lw=2, marker="o", ms=4, label=label)


def print_markdown(text: str) -> None:
    """Rendered on a terminal, as it is elsewhere."""
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    is_terminal = console.is_terminal  # a file gets the lines as they are
    console.print(
        Markdown(text) if is_terminal else text,
        markup=False,
        highlight=False,
        soft_wrap=not is_terminal,
    )
