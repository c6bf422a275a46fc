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
from dopsd.finished import COSTS, COUNTED, Finished, paired_over_seeds
from dopsd.layout import REPORTS, RUNS, scratch_folder
from dopsd.progress import read_json, say, write_json
from dopsd.stages.report import axes_of, save_figure

OUT = REPORTS / "compare"
BASELINE = "diffu_grpo"
RESAMPLED = "Intervals resample problems and seeds; of one seed problems alone, which says nothing of other seeds."


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
    """Markdown: a row a run, a row a method, methods against each other, and what reaching a baseline's best cost."""
    lines = ["Accuracy on test in %, paired difference to the base [95% interval], cost until the selected checkpoint.", ""]
    lines += _head("run", "base", "trained", "difference", "update", *COUNTED, "seconds")
    rows = [_row(run) for run in runs]
    for row in rows:
        sides = [f"{100 * row['base']:.1f}", f"{100 * row['trained']:.1f}", _gap(row["difference"], row["interval"])]
        lines.append(_line(row["run"], *sides, row["update"], *_costs(row)))
    means = list(_means(runs, resamples))
    lines += ["", f"Means over seeds, costs too. {RESAMPLED}", ""]
    lines += _head("task", "method", "seeds", "trained", "difference", *COUNTED, "seconds")
    lines += [_line(task, method, n, f"{100 * a:.1f}", _gap(*gap), *_costs(cost)) for task, method, n, a, gap, cost in means]
    pairs = list(_pairs(runs, resamples))
    if pairs:
        lines += ["", f"Methods against each other over the seeds that both have, paired by problem. {RESAMPLED}", ""]
        lines += _head("task", "first", "second", "seeds", "first - second")
        lines += [_line(task, a, b, n, _gap(mean, interval)) for task, a, b, n, mean, interval in pairs]
    reached = list(_reached(runs))
    if reached:
        lines += ["", f"Where the mean curve on the selection split comes up to the best of `{BASELINE}`'s:", ""]
        lines += _head("task", "method", "best to reach", *COSTS)
        lines += [_line(task, method, f"{100 * best:.1f}", *_costs(cost, COSTS)) for task, method, best, cost in reached]
    return "\n".join(lines) + "\n"


def _head(*names: str) -> list[str]:
    return [_line(*names), "|" + "---|" * len(names)]


def _line(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def _costs(found: dict[str, float] | None, names: Sequence[str] = (*COUNTED, "seconds")) -> list[str]:
    """A cell a cost; seconds are not known of a run that came from DVC's cache."""
    if found is None:
        return ["not reached"] * len(names)
    return [f"{found[name]:.0f}" if name in found else "from the cache" for name in names]


def _mean_cost(costs: Sequence[dict[str, float]]) -> dict[str, float]:
    """Of the costs that all of them have."""
    return {name: sum(c[name] for c in costs) / len(costs) for name in costs[0] if all(name in c for c in costs)}


def _groups(runs: list[Finished]) -> dict[tuple[str, str], list[Finished]]:
    found: dict[tuple[str, str], list[Finished]] = {}
    for run in runs:
        found.setdefault((run.task, run.method), []).append(run)
    return found


def _means(runs: list[Finished], resamples: int):
    """Each method's mean test accuracy over seeds, its paired difference to the base, and its mean cost."""
    for (task, method), group in _groups(runs).items():
        gaps = []
        for run in group:
            base, best = (run.tested[side]["per_problem"] for side in ("base", "best"))
            gaps.append([best[name] - base[name] for name in sorted(best)])
        accuracy = sum(run.tested["best"]["accuracy"] for run in group) / len(group)
        cost = _mean_cost([run.costs()[run.selected["update"]] for run in group])
        yield task, method, len(group), accuracy, paired_over_seeds(gaps, resamples), cost


def _curve(group: list[Finished]) -> list[tuple[float, dict[str, float]]]:
    """Mean accuracy over seeds and mean cost at each checkpoint that all of them have."""
    curves = [dict(run.points()) for run in group]
    shared = [update for update in curves[0] if all(update in curve for curve in curves)]
    costs = [run.costs() for run in group]
    return [(sum(c[u] for c in curves) / len(group), _mean_cost([c[u] for c in costs])) for u in sorted(shared)]


def _reached(runs: list[Finished]):
    """For every method of a task that the baseline ran on: the cost at which its mean curve has the baseline's best."""
    groups = _groups(runs)
    for (task, method), group in groups.items():
        if (task, BASELINE) in groups:
            best = max(accuracy for accuracy, _ in _curve(groups[task, BASELINE]))
            yield task, method, best, next((cost for accuracy, cost in _curve(group) if accuracy >= best), None)


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
