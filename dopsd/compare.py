"""`dopsd compare`: finished runs side by side: a table with paired intervals, and accuracy against what it cost.

An update costs differently by method, so curves are drawn against updates, rollouts and seconds.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from itertools import combinations, product
from pathlib import Path
from typing import Any

from dopsd.config import Params
from dopsd.errors import DopsdError
from dopsd.keyed import text_key
from dopsd.layout import LOG, REPORTS, RUNS, Cell, read_log, read_table, scratch_folder
from dopsd.progress import WORK, read_json, say, write_json
from dopsd.scoring import bootstrap
from dopsd.stages.report import axes_of, save_figure

OUT = REPORTS / "compare"
COSTS = ("updates", "rollouts", "seconds")


class Finished(Cell):
    """A cell whose stages have run, read from runs/."""

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
    runs = [_named(params, name) for name in names] or _of_matrix(params)
    _check(runs)
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


def _named(params: Params, name: str) -> Finished:
    parts = name.split("/")
    if len(parts) != 3 or not parts[2].isdigit():
        raise DopsdError(f"compare: {name}: expected task/method/seed, such as sudoku/d_opsd/0")
    for part, section in zip(parts, (params.data, params.method), strict=False):
        known = sorted(type(section).model_fields)
        if part not in known:
            raise DopsdError(f"compare: {name}: {part} is unknown; there is {', '.join(known)}")
    return Finished(parts[0], parts[1], int(parts[2]))


def _of_matrix(params: Params) -> list[Finished]:
    m = params.matrix
    every = [Finished(*cell) for cell in product(m.tasks, m.methods, m.seeds)]
    others = [str(path.parents[1].relative_to(RUNS)) for path in sorted(RUNS.glob("*/*/*/test/paired.json"))]
    others = [name for name in others if name not in map(str, every)]
    if others:
        say(f"compare: finished too, but not in params.yaml's matrix; name them to see them: {' '.join(others)}")
    found = [run for run in every if (run.folder / "test" / "paired.json").is_file() and _is_current(params, run)]
    if not found:
        raise DopsdError("compare: no finished run of params.yaml's matrix; `dvc repro` makes them")
    return found


def _is_current(params: Params, run: Finished) -> bool:
    """Whether these results are of params.yaml's settings; a run that is named is taken as it is."""
    made_by = read_json(run.folder / "train.json", "dopsd train")["fingerprint"]
    if made_by == scratch_folder(params, run.task, run.method, run.seed).name:
        return True
    say(f"compare: {run} was made with other settings, data or code; left out until `dvc repro` has run, or name it")
    return False


def _check(runs: list[Finished]) -> None:
    """Results that are missing, or not of the same problems, are named before anything is written."""
    first: dict[str, Finished] = {}
    for run in runs:
        one, other = (_tested_on(each) for each in (first.setdefault(run.task, run), run))
        if one != other:
            what = "protocols" if one[0] != other[0] else "problems"
            raise DopsdError(
                f"compare: {first[run.task]} and {run} were tested on different {what}: run both with the same data and "
                "evaluate sections of params.yaml, or name only runs that belong together"
            )


def _tested_on(run: Finished) -> tuple[str, list[str]]:
    problems = sorted(run.tested["best"]["per_problem"])
    return run.selected["protocol"], problems


def _row(run: Finished) -> dict[str, Any]:
    """What a run reached and what it cost until its selected checkpoint."""
    tested, update = run.tested, run.selected["update"]
    return {
        "run": str(run),
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
        lines += ["", "Methods against each other: mean over shared seeds, paired by problem; the interval resamples problems"]
        lines[-1] += " and seeds (of one seed: problems alone, and says nothing of other seeds)."
        lines += [""]
        lines += ["| task | first | second | seeds | first - second |", "|---|---|---|---|---|"]
        lines += [f"| {task} | {a} | {b} | {n} | {_gap(mean, interval)} |" for task, a, b, n, mean, interval in pairs]
    return "\n".join(lines) + "\n"


def _gap(mean: float, interval: Sequence[float]) -> str:
    return f"{100 * mean:+.1f} [{100 * interval[0]:+.1f}, {100 * interval[1]:+.1f}]"


def _pairs(runs: list[Finished], resamples: int):
    """Every two methods of a task: the mean difference over seeds and problems, and its bootstrap interval."""
    scores = {(run.task, run.method, run.seed): run.tested["best"]["per_problem"] for run in runs}
    for task in dict.fromkeys(run.task for run in runs):
        methods = dict.fromkeys(run.method for run in runs if run.task == task)
        for a, b in combinations(methods, 2):
            seeds = [s for t, m, s in scores if (t, m) == (task, a) and (task, b, s) in scores]
            if seeds:
                names = sorted(scores[task, a, seeds[0]])
                gaps = [[scores[task, a, s][name] - scores[task, b, s][name] for name in names] for s in seeds]
                yield task, a, b, len(seeds), *paired_over_seeds(gaps, resamples)


def paired_over_seeds(gaps: Sequence[Sequence[float]], resamples: int) -> tuple[float, tuple[float, float]]:
    """Mean of differences [seed, problem] and its 95% percentile interval: seeds and problems are both drawn again.

    Problems alone would tell how sure the difference of THESE runs is, not of the methods. Of few seeds the interval is
    still somewhat narrow: a bootstrap of n values misses a share 1/n of their variance.
    """
    import numpy

    values = numpy.asarray(gaps)
    seeds, problems = values.shape
    if seeds == 1:
        return float(values.mean()), bootstrap(values[0], resamples)
    draw = numpy.random.default_rng(text_key("bootstrap", seeds, problems) & 0xFFFFFFFF)
    of_seeds = draw.multinomial(seeds, [1 / seeds] * seeds, resamples)
    of_problems = draw.multinomial(problems, [1 / problems] * problems, resamples)
    means = numpy.einsum("rs,sp,rp->r", of_seeds, values, of_problems, optimize=True) / values.size
    low, high = numpy.quantile(means, [0.025, 0.975])
    return float(values.mean()), (float(low), float(high))


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
    for row in axes:
        row[0].legend()
    save_figure(figure, path)


def print_comparison(params: Params, names: Sequence[str], out: Path) -> None:
    """The table, rendered for a terminal."""
    from rich.console import Console
    from rich.markdown import Markdown

    text = compare(params, names, out)
    console = Console()
    console.print(Markdown(text) if console.is_terminal else text, markup=False, highlight=False)
