"""Charts of the leaderboard: validation accuracy against every cost, one colour for each entry."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Any

from dopsd.analysis.html_report.charts import Chart, figure_of, hover, source_of
from dopsd.analysis.run_figures import METHODS
from dopsd.core.palette import NEUTRAL, drawing_colours

if TYPE_CHECKING:
    from bokeh.plotting import figure as Figure

    from dopsd.analysis.html_report.leaderboard_board import Board

AXES = {
    "update": "updates",
    "tokens": "sampled tokens",
    "cpu_seconds": "CPU seconds (one thread)",
    "flops": "FLOPs",
}
Points = list[dict[str, Any]]  # checkpoints: costs and accuracy


def accuracy_chart(board: Board, task: str) -> Chart:
    """Return validation accuracy against cost: thin lines are seeds, thick ones their means."""
    colours = entry_colours(board)
    drawing = figure_of(AXES["update"], "accuracy on validation, in %", True, 420)
    entries = [name for name in board.entries(task) if board.runs(task, name)]
    curves = {name: [run["curve"] for run in board.runs(task, name)] for name in entries}
    base = board.results["bases"][task]["validation"]
    legend = []
    for name, seeds in curves.items():
        _draw_seeds(drawing, seeds, colours[name])
    for name, seeds in curves.items():
        _draw_mean(drawing, mean_points(seeds), colours[name], board.title(name))
        legend.append((board.title(name), colours[name], "line"))
    points = [point for seeds in curves.values() for curve in seeds for point in curve]
    ends = {cost: [0.0, max((p[cost] for p in points), default=1.0)] for cost in AXES}
    source = source_of({**ends, "accuracy": [base, base]}, list(AXES))
    drawing.line("x", "accuracy", source=source, line_dash="dashed", line_color=NEUTRAL)
    legend.append(("base", NEUTRAL, "dashed"))
    note = (
        "Validation chooses checkpoints, so the best points are a little too high. Thin lines are"
        " seeds; thick ones are means over all seeds of an entry, as far as each of them goes."
    )
    still = [board.title(name) for name in entries if board.samples_nothing(task, name)]
    if still:
        note += f" Against sampled tokens, {', '.join(still)} stays at 0: it samples none."
    return Chart(f"{task}: accuracy against cost", note, drawing, legend, list(AXES))


def entry_colours(board: Board) -> dict[str, str]:
    """Return the colour of each entry: its method's, or another one for a further entry of it."""
    keys = {
        name: name if name == entry["method"] else f"{entry['method']}-{name}"
        for name, entry in board.results["entries"].items()
    }
    colours = drawing_colours(METHODS, keys.values())
    return {name: colours[key] for name, key in keys.items()}


def mean_points(seeds: list[Points]) -> Points:
    """Return means of accuracy and costs at the updates that all seeds have."""
    by_update = [{point["update"]: point for point in curve} for curve in seeds]
    shared = sorted(set.intersection(*map(set, by_update))) if by_update else []
    return [
        {name: fmean(points[update][name] for points in by_update) for name in (*AXES, "accuracy")}
        for update in shared
    ]


def _draw_seeds(drawing: Figure, seeds: list[Points], shade: str) -> None:
    for curve in seeds if len(seeds) > 1 else ():
        source = source_of(_columns(curve), list(AXES))
        drawing.line("x", "accuracy", source=source, line_color=shade, line_alpha=0.35)


def _draw_mean(drawing: Figure, mean: Points, shade: str, title: str) -> None:
    source = source_of(_columns(mean), list(AXES))
    drawing.line("x", "accuracy", source=source, line_color=shade, line_width=2.5)
    dots = drawing.scatter("x", "accuracy", source=source, color=shade, size=6)
    rows = [("entry", title), ("accuracy", "@accuracy{0.0%}")]
    hover(drawing, dots, [*rows, *((text, f"@{name}{{0.[00]a}}") for name, text in AXES.items())])


def _columns(points: Points) -> dict[str, list[Any]]:
    return {name: [point[name] for point in points] for name in (*AXES, "accuracy")}
