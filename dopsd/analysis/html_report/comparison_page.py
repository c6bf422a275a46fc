"""The report of a comparison as an HTML page: which method is better, how sure, at what cost."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from dopsd.analysis.figures import METHODS
from dopsd.analysis.html_report import comparison_text, words
from dopsd.analysis.html_report.page import render_page
from dopsd.analysis.html_report.run_charts import AXES, Chart, figure_of, hover, source_of
from dopsd.analysis.results import Finished
from dopsd.analysis.tables import chosen_on, groups, mean_curve, paper_tables, points_in_words
from dopsd.core.palette import drawing_colours
from dopsd.core.statistics import gap, percent, within

if TYPE_CHECKING:
    from bokeh.plotting import figure as Figure

    from dopsd.analysis.html_report.facts import ComparisonFacts

RUN_COSTS = ("rollouts", "seconds")  # in the table of runs, beside the update
Curve = list[tuple[dict[str, float], float]]  # costs and accuracy of each checkpoint
WORDS: tuple[str, ...] = (
    "Accuracy",
    "Base",
    "Checkpoint",
    "Full marks",
    "Interval",
    "Paired difference",
    "Points",
)
WORDS += ("Rollout", "Seed", "Update", "Validation and test")


def comparison_page(facts: ComparisonFacts, digest: str) -> str:
    """Return the page."""
    tasks = list(dict.fromkeys(run.task for run in facts.runs))
    shown = facts.named_tables
    values = {
        "facts": facts,
        "title": "Comparison of methods",
        "verdicts": comparison_text.verdicts(shown["means"], shown["pairs"], facts.graded),
        "rule": comparison_text.RULE,
        "of_these_runs": comparison_text.of_these_runs(facts),
        "limits": comparison_text.of_all(facts),
        "starts": comparison_text.starts_text(facts.runs),
        "papers": [p for task in tasks for p in paper_tables(task, facts.names_in(task))],
        "lengths": comparison_text.lengths(facts),
        "tested_on": _distinct(f"{row['n']}" for _, row in _rows(facts)),
        "selected_on": _distinct(chosen_on(run).lower() for run in facts.runs),
        "runs": [_run_row(facts, run, row) for run, row in _rows(facts)],
        "means": [_mean_row(facts, row) for row in facts.tables["means"]],
        "pairs": [_pair_row(pair) for pair in shown["pairs"]],
        "speed": [
            row | {"gap": gap(*row["difference"]), "points": points_in_words(row["points"])}
            for row in shown["speed"]
        ],
        "reached": shown["reached"],
        "baseline": facts.name_of_baseline,
        "names": {task: facts.names_in(task) for task in tasks},
        "number": words.grouped,
        "axes": AXES,
        "run_costs": RUN_COSTS,
        "percent": percent,
        "glossary": {word: words.GLOSSARY[word] for word in WORDS},
    }
    return render_page(
        "comparison.html", digest, {"cost": [_chart(facts, t) for t in tasks]}, values
    )


def _rows(facts: ComparisonFacts) -> list[tuple[Finished, dict[str, Any]]]:
    return list(zip(facts.runs, facts.tables["runs"], strict=True))


def _run_row(facts: ComparisonFacts, run: Finished, row: dict[str, Any]) -> dict[str, Any]:
    return {
        "run": run.name,
        "link": facts.links.get(str(run), ""),
        "base": within(row["base"], row["base_interval"]),
        "trained": within(row["trained"], row["trained_interval"]),
        "marks": " → ".join(percent(run.tested[side]["whole"]) for side in ("base", "best")),
        "gap": gap(row["difference"], row["interval"]),
        "update": row["update"],
        "costs": {name: words.grouped(row.get(name)) for name in RUN_COSTS},
    }


def _distinct(texts: Iterable[str]) -> str:
    return " or ".join(dict.fromkeys(texts))


def _mean_row(facts: ComparisonFacts, row: dict[str, Any]) -> dict[str, Any]:
    marks = comparison_text.full_marks(facts, row["task"], row["method"])
    return {
        "task": row["task"],
        "method": facts.names[row["task"], row["method"]],
        "seeds": row["seeds"],
        "trained": within(*row["trained"]),
        "marks": " → ".join(map(percent, marks)),
        "gap": gap(*row["difference"]),
        "costs": {name: words.grouped(row["cost"].get(name)) for name in AXES},
    }


def _pair_row(pair: dict[str, Any]) -> dict[str, Any]:
    return pair | {
        "gap": gap(pair["difference"], pair["interval"]),
        "by_seed": ", ".join(percent(value, "+") for value in pair["by_seed"]),
        "certainty": comparison_text.certainty_text(pair["interval"], pair["by_seed"]),
    }


def _chart(facts: ComparisonFacts, task: str) -> Chart:
    """Return accuracy on the selection split against cost: one colour for each method."""
    runs_by_method = groups(facts.runs)
    methods = list(dict.fromkeys(method for _, method in runs_by_method))
    colours = drawing_colours(METHODS, methods)
    members = {
        method: {run: _points(run) for run in runs_by_method[task, method]}
        for method in methods
        if (task, method) in runs_by_method
    }
    points = [cost for group in members.values() for curve in group.values() for cost, _ in curve]
    costs = [cost for cost in AXES if all(cost in point for point in points)]
    split = next(run for run in facts.runs if run.task == task).selected["split"]
    drawing = figure_of(AXES[costs[0]], f"accuracy on {split}, in %", True, 380)
    legend = []
    for method, curves in members.items():
        shade = colours[method]
        name = facts.names[task, method]
        _draw_group(drawing, curves, costs, shade, name)
        legend.append((name, shade, "line"))
    note = f"Accuracy on {split}, which selects checkpoints. The tables above are on test."
    if any(len(curves) > 1 for curves in members.values()):
        note += " Thin lines are seeds, thick ones their means."
    if any(run.start for curves in members.values() for run in curves):
        note += (
            " A run that started from a checkpoint begins with the accuracy of that one, if known."
        )
    if "seconds" in costs:
        note += " Seconds also count other work on the machine."
    return Chart(f"{task}: accuracy against cost", note, drawing, legend, costs)


def _points(run: Finished) -> Curve:
    """Return costs and accuracy of each checkpoint."""
    costs = run.costs()
    return [(costs[update], accuracy) for update, accuracy in run.points() if update in costs]


def _draw_group(
    drawing: Figure, curves: dict[Finished, Curve], costs: list[str], shade: str, name: str
) -> None:
    """Draw the curves of a method: a thin line for each seed, a thick one for their mean."""
    for points in curves.values() if len(curves) > 1 else ():
        source = source_of(_columns(points, costs), costs)
        drawing.line("x", "accuracy", source=source, line_color=shade, line_alpha=0.55)
    mean = [(cost, accuracy) for accuracy, cost in mean_curve(list(curves))]
    source = source_of(_columns(mean, costs), costs)
    drawing.line("x", "accuracy", source=source, line_color=shade, line_width=3)
    dots = drawing.scatter("x", "accuracy", source=source, color=shade, size=8)
    rows = [("method", name), ("accuracy", "@accuracy{0.0%}")]
    hover(drawing, dots, [*rows, *((name, f"@{name}{{0,0}}") for name in costs)])


def _columns(points: Curve, costs: list[str]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {name: [cost[name] for cost, _ in points] for name in costs}
    return columns | {"accuracy": [accuracy for _, accuracy in points]}
