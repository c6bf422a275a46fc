"""Markdown tables of finished runs: rows, means over seeds, paired differences and costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from dopsd.algorithms.common.config import kind_of
from dopsd.algorithms.registry import label
from dopsd.analysis.results import Finished, paired_over_seeds
from dopsd.core.metrics import COUNTED
from dopsd.core.statistics import percent
from dopsd.evaluation.published import PublishedTable, published_tables

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.console import Console, ConsoleOptions
    from rich.table import Column, Table

RESAMPLED = (
    "Intervals resample problems and seeds. With three seeds, intervals are too narrow if seeds"
    " differ more than problems: such an interval misses the mean one time in four. With one seed,"
    " intervals resample problems only and do not cover other seeds."
)
READABLE, BETWEEN = 9, 3  # characters: of a column that may fold, and between two columns
Difference = tuple[float, tuple[float, float]]  # mean and its 95% interval


def row_of(run: Finished) -> dict[str, Any]:
    """Return a run's accuracies, their paired difference, and the cost of its best checkpoint."""
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
    """Return the two header lines of a table."""
    return [line(*names), "|" + "---|" * len(names)]


def line(*cells: object) -> str:
    """Return one line of a table."""
    return "| " + " | ".join(map(str, cells)) + " |"


def cost_cells(
    costs: dict[str, float] | None, names: Sequence[str] = (*COUNTED, "seconds")
) -> list[str]:
    """Return one cell for each cost.

    Args:
        costs: costs by name; None if the accuracy was never reached.
        names: the costs to show; the seconds of a run from DVC's cache are unknown.
    """
    if costs is None:
        return ["not reached"] * len(names)
    return [f"{costs[name]:.0f}" if name in costs else "from the cache" for name in names]


def mean_cost(costs: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the mean of each cost that all runs have."""
    return {
        name: sum(c[name] for c in costs) / len(costs)
        for name in costs[0]
        if all(name in c for c in costs)
    }


def groups(runs: list[Finished]) -> dict[tuple[str, str], list[Finished]]:
    """Group runs by task and method, across seeds."""
    runs_by_method: dict[tuple[str, str], list[Finished]] = {}
    for run in runs:
        runs_by_method.setdefault((run.task, run.method), []).append(run)
    return runs_by_method


def names_of(runs: list[Finished]) -> dict[tuple[str, str], str]:
    """Return the name of each method in tables, by task and method: `espo (GDSD)`."""
    names = {}
    for (task, method), group in groups(runs).items():
        variants = dict.fromkeys(run.variant or kind_of(method) for run in group)
        is_plain = not any(run.variant for run in group)
        names[task, method] = label(method, "" if is_plain else " and ".join(variants))
    return names


def titled(tables: dict[str, list[dict[str, Any]]], runs: list[Finished]) -> dict[str, Any]:
    """Return tables in which methods have their names, and runs their variants."""
    names, run_names = names_of(runs), {str(run): run.name for run in runs}

    def name_of(row: dict[str, Any], column: str) -> str:
        return run_names[row[column]] if column == "run" else names[row["task"], row[column]]

    columns = ("run", "method", "first", "second")
    return {
        title: [row | {c: name_of(row, c) for c in columns if c in row} for row in rows]
        for title, rows in tables.items()
    }


def chosen_on(run: Finished) -> str:
    """Return the split that selected the checkpoint, in capitals if it is the test set."""
    return "THE TEST SET ITSELF" if run.selected["split"] == "test" else run.selected["split"]


def means(
    runs: list[Finished], resamples: int
) -> Iterator[tuple[str, str, int, Difference, Difference, dict[str, float]]]:
    """Yield each method's results, averaged over seeds.

    Yields:
        Task, method, number of seeds, test accuracy with interval, paired difference to the base
        with interval, and the mean cost of the selected checkpoints.
    """
    for (task, method), group in groups(runs).items():
        gaps = [gaps_between(run.tested["best"], run.tested["base"]) for run in group]
        scores = [run.tested["best"]["per_problem"] for run in group]
        accuracy = paired_over_seeds(
            [[per_problem[name] for name in sorted(per_problem)] for per_problem in scores],
            resamples,
        )
        if len(group) == 1:  # the report's interval, which is Wilson's for 0/1 scores
            accuracy = group[0].tested["best"]["accuracy"], group[0].tested["best"]["interval"]
        cost = mean_cost([run.costs()[run.selected["update"]] for run in group])
        yield task, method, len(group), accuracy, paired_over_seeds(gaps, resamples), cost


def speeds(
    runs: list[Finished], resamples: int
) -> Iterator[tuple[str, str, int, float, float, Difference, dict[str, tuple[float, ...]]]]:
    """Yield each method's area under accuracy against steps, over the seeds that have one.

    Yields:
        Task, method, number of seeds, the area of the base and of the method, their paired
        difference with interval, and mean steps and accuracy of the points that all seeds have.
    """
    for (task, method), group in groups(runs).items():
        curves = [curve for run in group if (curve := run.speed)]
        if not curves:
            continue
        gaps = [gaps_between(curve["best"], curve["base"]) for curve in curves]
        base, best = (
            fmean(fmean(curve[side]["per_problem"].values()) for curve in curves)
            for side in ("base", "best")
        )
        points = {
            name: tuple(fmean(curve["best"]["points"][name][i] for curve in curves) for i in (0, 1))
            for name in curves[0]["best"]["points"]
            if all(name in curve["best"]["points"] for curve in curves)
        }
        yield task, method, len(curves), base, best, paired_over_seeds(gaps, resamples), points


def points_in_words(points: Mapping[str, tuple[float, ...]]) -> str:
    """Return steps and accuracy of each point: 5: 42.0, 10: 51.0, 8.4 (threshold0.9): 53.0."""
    marks = {name: name.rpartition("-")[2] for name in points if "-threshold" in name}
    marks = {name: f" ({marks[name]})" if name in marks else "" for name in points}
    ordered = sorted(points.items(), key=lambda point: point[1])
    return ", ".join(f"{steps:.3g}{marks[name]}: {percent(a)}" for name, (steps, a) in ordered)


def gaps_between(first: dict[str, Any], second: dict[str, Any]) -> list[float]:
    """Return the differences of two reports' scores, by problem."""
    a, b = first["per_problem"], second["per_problem"]
    return [a[name] - b[name] for name in sorted(a)]


def gaps_of(first: list[Finished], second: list[Finished]) -> list[list[float]]:
    """Return one method's test scores minus another's, [seed, problem], for common seeds."""
    second_by_seed = {run.seed: run for run in second}
    return [
        gaps_between(run.tested["best"], second_by_seed[run.seed].tested["best"])
        for run in first
        if run.seed in second_by_seed
    ]


def mean_curve(group: list[Finished]) -> list[tuple[float, dict[str, float]]]:
    """Return mean accuracy and mean cost over seeds, at each checkpoint that all runs have.

    Nothing of several runs with races: those of each seed have exact scores of other checkpoints.
    """
    if len(group) > 1 and any(run.is_raced for run in group):
        return []
    curves = [dict(run.points()) for run in group]
    shared = [update for update in curves[0] if all(update in curve for curve in curves)]
    costs = [run.costs() for run in group]
    return [
        (sum(c[u] for c in curves) / len(group), mean_cost([c[u] for c in costs]))
        for u in sorted(shared)
    ]


def draw_group(axis: Axes, group: list[Finished], cost: str, colour: str, label: str) -> None:
    """Draw accuracy against a cost: a thin line for each seed, a thick one for their mean."""
    for run in group:
        points = run.curve(cost)
        if points and len(group) > 1:
            axis.plot(*zip(*points, strict=True), color=colour, lw=0.8, alpha=0.45)
    mean = [(costs[cost], accuracy) for accuracy, costs in mean_curve(group) if cost in costs]
    if mean:
        axis.plot(*zip(*mean, strict=True), color=colour, lw=2, marker="o", ms=4, label=label)


def print_markdown(text: str) -> None:
    """Print Markdown: rendered on a terminal, unchanged into a file or pipe."""
    from rich.console import Console, RenderResult

    console = Console()
    if not console.is_terminal:
        console.print(text, markup=False, highlight=False, soft_wrap=True)
        return
    from rich.markdown import Markdown, TableElement  # takes a tenth of a second to import
    from rich.table import Table

    class FoldedTable(TableElement):
        """A table that breaks long words but those of its first column, and names what is cut."""

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            for part in super().__rich_console__(console, options):
                hidden = _fit(part, console, options) if isinstance(part, Table) else []
                yield part
                if hidden:
                    yield f"Too wide for this terminal: {', '.join(hidden)}. A file has all of it."

    class Page(Markdown):
        elements = Markdown.elements | {"table_open": FoldedTable}

    console.print(Page(text))


def _fit(table: Table, console: Console, options: ConsoleOptions) -> list[str]:
    """Take the last columns out of a table that is too wide to be read; return their titles."""
    from rich.measure import Measurement

    hidden: list[str] = []
    first, *others = table.columns
    first.no_wrap = True
    for column in others:
        column.overflow = "fold"

    def widest(column: Column) -> int:
        sizes = [Measurement.get(console, options, cell).maximum for cell in column.cells]
        return max([0, *sizes])

    widths = [widest(first), *(min(widest(column), READABLE) for column in others)]
    while len(widths) > 1 and sum(widths) + BETWEEN * len(widths) > options.max_width:
        widths.pop()
        hidden.insert(0, str(table.columns.pop().header))
    return hidden


UNREPORTED = "not reported"


@dataclass(frozen=True)
class PaperTable:
    """A paper's accuracies on a task, by one protocol, as texts."""

    title: str  # task, model, what the accuracy counts, protocol and paper
    columns: list[str]  # titles of the columns
    rows: list[list[str]]  # cells of each method
    notes: list[str]  # rows that are not the method of the runs of that name


def paper_tables(task: str, names: dict[str, str]) -> list[PaperTable]:
    """Return all published tables of a task."""
    return [_table(task, paper, names) for paper in published_tables() if task in paper.lengths]


def _table(task: str, paper: PublishedTable, names: dict[str, str]) -> PaperTable:
    lengths = paper.lengths[task]
    rows = []
    for method, row in ((m, tasks[task]) for m, tasks in paper.methods.items() if task in tasks):
        missing = [UNREPORTED] * (len(lengths) - len(row["accuracy"]))
        cells = [*map(str, row["accuracy"]), *missing, str(row.get("updates", UNREPORTED))]
        rows.append([task, method, *cells])
    shown = {method for _, method, *_ in rows}
    notes = [
        f"The row `{kind_of(method)}` above is not the method of the runs of `{name}` here."
        for method, name in names.items()
        if kind_of(method) in shown and method != name
    ]
    counted = paper.counts.get(task, "whole answers that are right")
    title = f"{task}, LLaDA-8B-Instruct, {counted}, in %, {paper.protocol} ({paper.source})"
    columns = ["task", "method", *(f"length {n}" for n in lengths), "update"]
    return PaperTable(title, columns, rows, notes)


def markdown_of(table: PaperTable) -> list[str]:
    """Return a published table as lines of Markdown, marked as not run here."""
    lines = ["", f"PUBLISHED, not run here: {table.title}.", "", *head(*table.columns)]
    lines += [line(*row) for row in table.rows]
    return [*lines, *(["", *table.notes] if table.notes else [])]
