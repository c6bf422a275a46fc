"""Charts of the leaderboard: validation accuracy against every cost, leaders in colour."""

from __future__ import annotations

from math import inf, nan
from statistics import fmean
from typing import TYPE_CHECKING, Any

from dopsd.analysis.html_report.charts import Chart, figure_of, hover, source_of
from dopsd.core.palette import NEUTRAL, PALETTE

if TYPE_CHECKING:
    from bokeh.plotting import figure as Figure

    from dopsd.analysis.html_report.leaderboard_board import Board

AXES = {
    "tokens": "sampled tokens",
    "cpu_seconds": "CPU seconds (one thread)",
    "update": "updates",
    "flops": "FLOPs",
}
SHOWN = 8  # entries with a colour; more cannot be told apart
DEPTH = 0.1  # accuracy below the base that is still in the picture
Points = list[dict[str, Any]]  # checkpoints: costs and accuracy


def accuracy_chart(board: Board, task: str) -> Chart:
    """Return validation accuracy against cost, within the budgets.

    Thick lines are means over seeds. Entries with a colour have a thin line for each seed too.
    """
    from bokeh.models import DataRange1d

    drawing = figure_of(next(iter(AXES.values())), "accuracy on validation, in %", True, 420)
    entries = [name for name in board.entries(task) if board.runs(task, name)]
    curves = {name: [run["curve"] for run in board.runs(task, name)] for name in entries}
    colours = {n: shade for n, shade in entry_colours(board).items() if n in shown(board, task)}
    base = board.results["bases"][task]["validation"]
    limits = {"tokens": board.results["rules"]["tokens"]}
    limits["cpu_seconds"] = board.results["rules"]["seconds"]
    for name in sorted(entries, key=lambda name: name in colours):  # the grey ones first
        shade = colours.get(name)
        if shade and len(curves[name]) > 1:
            for curve in curves[name]:
                source = source_of(_columns(curve, limits), list(AXES))
                drawing.line("x", "accuracy", source=source, line_color=shade, line_alpha=0.35)
        mean = _columns(mean_points(curves[name]), limits)
        _draw_mean(drawing, mean, shade, board.title(name), name == board.own)
    points = [point for seeds in curves.values() for curve in seeds for point in curve]
    most = {cost: max((p[cost] for p in points), default=1.0) for cost in AXES}
    ends = {cost: [0.0, min(most[cost], limits.get(cost, inf))] for cost in AXES}
    source = source_of({**ends, "accuracy": [base, base]}, list(AXES))
    drawing.line("x", "accuracy", source=source, line_dash="dashed", line_color=NEUTRAL)
    legend = [(board.title(name), shade, "line") for name, shade in colours.items()]
    if len(colours) < len(entries):
        legend.append(("the other entries", NEUTRAL, "thin"))
    legend.append(("base", NEUTRAL, "dashed"))
    note = (
        "Validation chooses checkpoints, so the best points are a little too high. Thin lines are"
        " seeds; thick ones are means over all seeds of an entry, as far as each of them goes."
        " Lines end where a budget or a run ends."
    )
    if any(point["accuracy"] < base - DEPTH for point in points):
        drawing.update(y_range=DataRange1d(start=max(0.0, base - DEPTH)))
        note += f" Those that fall {100 * DEPTH:g} points below the base leave the picture."
    still = [board.title(name) for name in entries if board.samples_nothing(task, name)]
    if still:
        note += f" Against sampled tokens, {', '.join(still)} stays at 0: it samples none."
    return Chart(f"{task}: accuracy against cost", note, drawing, legend, list(AXES))


def shown(board: Board, task: str) -> list[str]:
    """Return the entries of a task that have a colour: our own, those with most seeds, the best."""
    ranks = [row["entry"] for row in board.standings("tokens", task)]
    ranks += [name for name in board.entries(task) if name not in ranks]
    ranks.sort(key=lambda name: (name != board.own, -len(board.runs(task, name))))
    return ranks[:SHOWN]


def entry_colours(board: Board) -> dict[str, str]:
    """Return the colour of each entry that is shown on some task, our own first."""
    names = dict.fromkeys(name for task in board.tasks for name in shown(board, task))
    return dict(zip(names, PALETTE, strict=False))


def mean_points(seeds: list[Points]) -> Points:
    """Return means of accuracy and costs at the updates that all seeds have."""
    by_update = [{point["update"]: point for point in curve} for curve in seeds]
    shared = sorted(set.intersection(*map(set, by_update))) if by_update else []
    return [
        {name: fmean(points[update][name] for points in by_update) for name in (*AXES, "accuracy")}
        for update in shared
    ]


def _draw_mean(
    drawing: Figure, columns: dict[str, list[Any]], shade: str | None, title: str, is_own: bool
) -> None:
    source, colour = source_of(columns, list(AXES)), shade or NEUTRAL
    width = 4 if is_own else 2.5 if shade else 1
    drawing.line("x", "accuracy", source=source, line_color=colour, line_width=width)
    dots = drawing.scatter("x", "accuracy", source=source, color=colour, size=6 if shade else 3)
    rows = [("entry", title), ("accuracy", "@accuracy{0.0%}")]
    hover(drawing, dots, [*rows, *((text, f"@{name}{{0.[00]a}}") for name, text in AXES.items())])


def _columns(points: Points, limits: dict[str, float]) -> dict[str, list[Any]]:
    """Return the points as columns; a cost beyond its budget is no number, which ends the line."""
    columns: dict[str, list[Any]] = {"accuracy": [point["accuracy"] for point in points]}
    for name in AXES:
        most = limits.get(name, inf)
        columns[name] = [point[name] if point[name] <= most else nan for point in points]
    return columns
