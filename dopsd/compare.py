"""`dopsd compare`: finished runs side by side: a table with paired intervals, and accuracy against what it cost.

An update costs differently by method, so curves are drawn against updates, rollouts and seconds.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from typing import Any

from dopsd.config import Params
from dopsd.errors import DopsdError
from dopsd.layout import LOG, REPORTS, cell_folder, read_log, read_table
from dopsd.progress import WORK, read_json, say, write_json
from dopsd.scoring import bootstrap
from dopsd.stages.report import axes_of, save_figure

OUT = REPORTS / "compare"
COSTS = ("updates", "rollouts", "seconds")


@dataclass(frozen=True)
class Finished:
    """One task x method x seed whose stages have run, read from runs/."""

    task: str
    method: str
    seed: int

    @property
    def folder(self) -> Path:
        return cell_folder(self.task, self.method, self.seed)

    @property
    def name(self) -> str:
        return f"{self.task}/{self.method}/{self.seed}"

    @property
    def tested(self) -> dict[str, Any]:
        """The reports of base and best under the protocol that selected, and their paired difference."""
        found = read_json(self.folder / "test" / "paired.json", "dopsd test")
        return found["protocols"][found["selected"]["protocol"]]

    @property
    def selected(self) -> dict[str, Any]:
        return read_json(self.folder / "best" / "select.json", "dopsd select")

    def costs(self) -> dict[int, dict[str, float]]:
        """Cost by update: rollouts from the run's table, seconds from its log, which a run from DVC's cache lacks."""
        log = WORK / read_json(self.folder / "train.json", "dopsd train")["fingerprint"] / LOG
        clock: dict[int, float] = {}
        for row in read_log(log) if log.is_file() else []:
            clock[row["update"]] = row["time/update_seconds"] + max(clock.values(), default=0.0)
        found = {0: dict.fromkeys(COSTS if clock else COSTS[:2], 0.0)}
        for row in read_table(self.folder / "train.csv"):
            at = {"updates": row["update"], "rollouts": row["count/rollouts"]}
            found[row["update"]] = at | ({"seconds": clock[row["update"]]} if row["update"] in clock else {})
        return found

    def curve(self, cost: str) -> list[tuple[float, float]]:
        """Cost and accuracy on the selection split, a point a checkpoint."""
        costs, name = self.costs(), self.selected["protocol"]
        rows = [row for row in read_table(self.folder / "curve.csv") if row["protocol"] == name]
        return [(costs[row["update"]][cost], row["accuracy"]) for row in rows if cost in costs.get(row["update"], {})]


def compare(params: Params, names: Sequence[str], out: Path = OUT) -> str:
    """Table and figure of these runs (none: those of params.yaml's matrix that have ended) in `out`; the table's text."""
    runs = [_named(name) for name in names] or _of_matrix(params)
    for run in runs:
        _ = run.tested  # missing results are named before anything is written
    text = table(runs, params.evaluate.bootstrap)
    half = out.with_name(f".{out.name}.tmp")
    shutil.rmtree(half, ignore_errors=True)
    half.mkdir(parents=True)
    (half / "comparison.md").write_text(text)
    write_json(half / "comparison.json", {"runs": [_row(run) for run in runs]})
    draw(runs, half / "accuracy.png")
    shutil.rmtree(out, ignore_errors=True)
    half.rename(out)
    say(f"compare: {len(runs)} runs, in {out}/comparison.md, comparison.json and accuracy.png")
    return text


def _named(name: str) -> Finished:
    parts = name.split("/")
    if len(parts) != 3 or not parts[2].isdigit():
        raise DopsdError(f"compare: {name}: expected task/method/seed, such as sudoku/d_opsd/0")
    return Finished(parts[0], parts[1], int(parts[2]))


def _of_matrix(params: Params) -> list[Finished]:
    m = params.matrix
    every = [Finished(*cell) for cell in product(m.tasks, m.methods, m.seeds)]
    found = [run for run in every if (run.folder / "test" / "paired.json").is_file()]
    if not found:
        raise DopsdError("compare: no finished run of params.yaml's matrix; `dvc repro` makes them")
    return found


def _row(run: Finished) -> dict[str, Any]:
    """What a run reached and what it cost until its selected checkpoint."""
    tested, update = run.tested, run.selected["update"]
    return {
        "run": run.name,
        "base": tested["base"]["accuracy"],
        "trained": tested["best"]["accuracy"],
        "difference": tested["paired"]["difference"],
        "interval": tested["paired"]["interval"],
        "n": tested["base"]["n"],
        "update": update,
        **run.costs()[update],
    }


def table(runs: list[Finished], resamples: int) -> str:
    """Markdown: a row a run, then methods of a task against each other over the seeds that both have."""
    lines = [
        "Accuracy on test in %, paired difference to the base [95% interval], cost until the selected checkpoint.",
        "",
    ]
    lines += ["| run | base | trained | difference | update | rollouts | seconds |", "|---|---|---|---|---|---|---|"]
    for row in map(_row, runs):
        seconds = f"{row['seconds']:.0f}" if "seconds" in row else "from the cache"
        sides = f"{100 * row['base']:.1f} | {100 * row['trained']:.1f} | {_gap(row['difference'], row['interval'])}"
        lines.append(f"| {row['run']} | {sides} | {row['update']} | {row['rollouts']:.0f} | {seconds} |")
    pairs = list(_pairs(runs, resamples))
    if pairs:
        lines += ["", "Methods against each other: mean over shared seeds, paired by problem.", ""]
        lines += ["| task | first | second | seeds | first - second |", "|---|---|---|---|---|"]
        lines += [f"| {task} | {a} | {b} | {n} | {_gap(mean, interval)} |" for task, a, b, n, mean, interval in pairs]
    return "\n".join(lines) + "\n"


def _gap(mean: float, interval: Sequence[float]) -> str:
    return f"{100 * mean:+.1f} [{100 * interval[0]:+.1f}, {100 * interval[1]:+.1f}]"


def _pairs(runs: list[Finished], resamples: int):
    """Every two methods of a task: the mean over seeds of each problem's difference, and its bootstrap interval."""
    scores = {(run.task, run.method, run.seed): run.tested["best"]["per_problem"] for run in runs}
    for task in dict.fromkeys(run.task for run in runs):
        methods = dict.fromkeys(run.method for run in runs if run.task == task)
        for a, b in combinations(methods, 2):
            seeds = [s for t, m, s in scores if (t, m) == (task, a) and (task, b, s) in scores]
            if seeds:
                pairs = [(scores[task, a, s], scores[task, b, s]) for s in seeds]
                gaps = [sum(first[name] - second[name] for first, second in pairs) / len(pairs) for name in pairs[0][0]]
                yield task, a, b, len(seeds), sum(gaps) / len(gaps), bootstrap(gaps, resamples)


def draw(runs: list[Finished], path: Path) -> None:
    """Accuracy on the selection split against updates, rollouts and seconds; a colour a method, a line a seed, a row a task."""
    tasks, methods = (list(dict.fromkeys(names)) for names in zip(*((run.task, run.method) for run in runs), strict=True))
    figure, axes = axes_of(len(tasks), len(COSTS), (5 * len(COSTS), 3.6 * len(tasks)))
    for (row, task), (column, cost) in product(enumerate(tasks), enumerate(COSTS)):
        axis = axes[row][column]
        for run in (run for run in runs if run.task == task):
            points = run.curve(cost)
            if points:
                label = run.method if run.method not in axis.get_legend_handles_labels()[1] else None
                axis.plot(*zip(*points, strict=True), marker="o", ms=3, color=f"C{methods.index(run.method)}", label=label)
        axis.set(xlabel=cost, title=task)
        if not axis.lines:
            axis.text(0.5, 0.5, "not recorded: from DVC's cache", ha="center", transform=axis.transAxes)
    axes[0][0].set_ylabel("accuracy on the selection split")
    axes[0][0].legend()
    save_figure(figure, path)


def print_comparison(params: Params, names: Sequence[str], out: Path) -> None:
    """The table, rendered for a terminal."""
    from rich.console import Console
    from rich.markdown import Markdown

    text = compare(params, names, out)
    console = Console()
    console.print(Markdown(text) if console.is_terminal else text, markup=False, highlight=False)
