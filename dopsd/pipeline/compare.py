"""`dopsd compare`: finished runs side by side: a table with paired intervals, and accuracy against what it cost.

An update costs differently by method, so curves are drawn against updates, rollouts and seconds.
"""

from __future__ import annotations

import re
from itertools import combinations, product
from typing import TYPE_CHECKING, Any

from dopsd.algorithms.common.config import BETWEEN
from dopsd.analysis.figures import axes_of, save_figure
from dopsd.analysis.results import COSTS, COUNTED, Finished, paired_over_seeds
from dopsd.analysis.tables import (
    RESAMPLED,
    chosen_on,
    cost_cells,
    draw_group,
    gap,
    gaps_of,
    groups,
    head,
    line,
    mean_curve,
    means,
    percent,
    print_markdown,
    row_of,
    within,
)
from dopsd.core.errors import DopsdError
from dopsd.core.files import fresh_folder, read_json, write_json
from dopsd.core.paths import REPORTS, RUNS
from dopsd.core.progress import log
from dopsd.evaluation.published import published
from dopsd.training import run_identity

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from dopsd.config.params import Params

OUT = REPORTS / "compare"
FILES = {"comparison.md", "comparison.json", "accuracy.png"}


def compare(params: Params, names: Sequence[str], out: Path = OUT) -> str:
    """Table and figure of these runs (none: those of params.yaml's matrix that have ended) in `out`; the table's text."""
    if params.compare.baseline not in params.methods:
        known = ", ".join(type(params.method).model_fields)
        raise DopsdError(f"compare.baseline: {params.compare.baseline}: unknown; there is {known}")
    check_replaceable(out)
    runs = [_named(params, name) for name in dict.fromkeys(names)] or _of_matrix(params)
    check(runs)
    text = table(params, runs)
    with fresh_folder(out) as tmp:
        (tmp / "comparison.md").write_text(text)
        write_json(tmp / "comparison.json", values(params, runs))
        draw(runs, tmp / "accuracy.png")
    log(f"compare: {len(runs)} runs, in {out}/comparison.md, comparison.json and accuracy.png")
    return text


def check_replaceable(out: Path) -> None:
    """Refuse a folder that holds anything else than an earlier comparison: it would be removed."""
    here = out.resolve()
    if here == here.parent or (
        here.exists() and not (here.is_dir() and {p.name for p in here.iterdir()} <= FILES)
    ):
        raise DopsdError(
            f"--out {out}: is there already and not of an earlier comparison; name a new folder"
        )


def _named(params: Params, name: str) -> Finished:
    parts = name.split("/")
    if len(parts) != 3 or not re.fullmatch("[0-9]{1,19}", parts[2]):
        raise DopsdError(f"compare: {name}: expected task/method/seed, such as sudoku/d_opsd/0")
    for part, known in zip(
        parts, (sorted(type(params.data).model_fields), params.methods), strict=False
    ):
        if part not in known:
            listed = ", ".join(one for one in known if BETWEEN not in one)
            variants = "; variants: `dopsd ablate`" if part == parts[1] else ""
            raise DopsdError(f"compare: {name}: {part} is unknown; there is {listed}{variants}")
    return Finished(parts[0], parts[1], int(parts[2]))


def _of_matrix(params: Params) -> list[Finished]:
    m = params.matrix
    every = [Finished(*cell) for cell in product(m.tasks, m.methods, m.seeds)]
    others = [
        str(path.parents[1].relative_to(RUNS))
        for path in sorted(RUNS.glob("*/*/*/test/paired.json"))
    ]
    others = [name for name in others if name not in map(str, every)]
    if others:
        log(
            f"compare: finished too, but not in params.yaml's matrix; name them to see them: {' '.join(others)}"
        )
    ended = [run for run in every if (run.folder / "test" / "paired.json").is_file()]
    if len(ended) < len(every):
        log(f"compare: not finished yet: {' '.join(str(run) for run in every if run not in ended)}")
    found = [run for run in ended if is_current(params, run)]
    if not found:
        raise DopsdError("compare: no finished run of params.yaml's matrix; `dvc repro` makes them")
    return found


def is_current(params: Params, run: Finished) -> bool:
    """Whether these results are of params.yaml's settings; a run that is named is taken as it is."""
    if run_identity.is_current(
        params.run(*run.parts), read_json(run.folder / "train.json", "dopsd train")
    ):
        return True
    log(
        f"compare: {run} was made with other settings, data or code; left out until `dvc repro` has run, or name it"
    )
    return False


def check(runs: list[Finished]) -> None:
    """Results that are missing, or not of the same problems, are named before anything is written."""
    first: dict[str, Finished] = {}
    for run in runs:
        one, other = (_tested_on(each) for each in (first.setdefault(run.task, run), run))
        if one != other:
            what = next(name for name in one if one[name] != other[name])
            raise DopsdError(
                f"compare: {first[run.task]} and {run} have different {what}: run both with the same data, model, evaluate and "
                "select sections of params.yaml, or name only runs that belong together"
            )


def _tested_on(run: Finished) -> dict[str, Any]:
    """What must agree for runs to be laid side by side, by what it is called."""
    base, chosen = run.tested["base"], run.selected
    found: dict[str, Any] = {
        "protocols": (chosen["protocol"], base["protocol"]),
        "problems": sorted(base["per_problem"]),
    }
    return found | {"answers of the base": base["per_problem"], "selection splits": chosen["split"]}


def values(params: Params, runs: list[Finished]) -> dict[str, list[dict[str, Any]]]:
    """What the table says, unrounded."""
    resamples, baseline = params.evaluate.bootstrap, params.compare.baseline
    columns = ("task", "method", "seeds", "trained", "difference", "cost")
    found = {"runs": [row_of(run) for run in runs]}
    found["means"] = [dict(zip(columns, row, strict=True)) for row in means(runs, resamples)]
    columns = ("task", "first", "second", "seeds", "difference", "interval")
    found["pairs"] = [dict(zip(columns, row, strict=True)) for row in pairs(runs, resamples)]
    columns = ("task", "method", "seeds", "best", "cost")
    found["reached"] = [dict(zip(columns, row, strict=True)) for row in reached(runs, baseline)]
    return found


def table(params: Params, runs: list[Finished]) -> str:
    """Markdown: a row a run, a row a method, methods against each other, and what reaching a baseline's best cost."""
    resamples, baseline = params.evaluate.bootstrap, params.compare.baseline
    splits = " and ".join(dict.fromkeys(chosen_on(run) for run in runs))
    told = "Accuracy on test in % [95% interval] and paired difference to the base; costs until the checkpoint"
    lines = [f"{told}, which was chosen on {splits}.", ""]
    lines += head("run", "n", "base", "trained", "difference", "update", *COUNTED, "seconds")
    rows = [row_of(run) for run in runs]
    for row in rows:
        sides = [
            within(row["base"], row["base_interval"]),
            within(row["trained"], row["trained_interval"]),
        ]
        difference = gap(row["difference"], row["interval"])
        lines.append(
            line(row["run"], row["n"], *sides, difference, row["update"], *cost_cells(row))
        )
    lines += ["", f"Means over seeds, costs too. {RESAMPLED}", ""]
    lines += head(
        "task", "method", "seeds", "trained", "difference", "updates", *COUNTED, "seconds"
    )
    every = ("updates", *COUNTED, "seconds")
    for task, method, n, accuracy, over_base, cost in means(runs, resamples):
        lines.append(
            line(task, method, n, within(*accuracy), gap(*over_base), *cost_cells(cost, every))
        )
    found = list(pairs(runs, resamples))
    if found:
        lines += [
            "",
            "Methods against each other over the seeds that both have, paired by problem.",
            "",
        ]
        lines += head("task", "first", "second", "seeds", "first - second")
        lines += [
            line(task, a, b, n, gap(mean, interval)) for task, a, b, n, mean, interval in found
        ]
    at_best = list(reached(runs, baseline))
    if at_best:
        told = f"The checkpoint at which the mean curve on the selection split first has the best of `{baseline}`'s"
        lines += ["", f"{told}, over the seeds that both have:", ""]
        lines += head("task", "method", "seeds", "best to reach", *every)
        lines += [
            line(task, method, n, percent(best), *cost_cells(cost, every))
            for task, method, n, best, cost in at_best
        ]
    for task in dict.fromkeys(run.task for run in runs):
        lines += _published(task)
    return "\n".join(lines) + "\n"


def _published(task: str) -> list[str]:
    """The paper's rows of this task, told apart: another base, and chosen on the test set."""
    known = published()
    rows = {method: tasks[task] for method, tasks in known["methods"].items() if task in tasks}
    told = "the best of 20 checkpoints on the test set"
    lines = [
        "",
        f"PUBLISHED, not run here: {task}, LLaDA-8B-Instruct, accuracy in %, {told} ({known['source']}).",
        "",
    ]
    lines += head("task", "method", *(f"length {n}" for n in known["lengths"][task]), "update")
    for method, row in rows.items():
        missing = ["not told"] * (len(known["lengths"][task]) - len(row["accuracy"]))
        lines.append(line(task, method, *row["accuracy"], *missing, row.get("updates", "not told")))
    return lines


def reached(
    runs: list[Finished], baseline: str
) -> Iterator[tuple[str, str, int, float, dict[str, float] | None]]:
    """For every method of a task that the baseline ran on: the cost at which its mean curve has the baseline's best."""
    found = groups(runs)
    for (task, method), group in found.items():
        seeds = {run.seed for run in group} & {run.seed for run in found.get((task, baseline), [])}
        if seeds:
            ours, theirs = (
                [run for run in side if run.seed in seeds]
                for side in (group, found[task, baseline])
            )
            best = max(
                (accuracy for accuracy, _ in mean_curve(theirs)[1:]), default=None
            )  # the first is the base
            if best is not None:  # runs that ended early may share no checkpoint
                cost = next(
                    (cost for accuracy, cost in mean_curve(ours)[1:] if accuracy >= best), None
                )
                yield task, method, len(seeds), best, cost


def pairs(
    runs: list[Finished], resamples: int
) -> Iterator[tuple[str, str, str, int, float, tuple[float, float]]]:
    """Every two methods of a task: the mean difference over seeds and problems, and its bootstrap interval."""
    found = groups(runs)
    for (task, a), (other, b) in combinations(found, 2):
        gaps = gaps_of(found[task, a], found[other, b]) if task == other else []
        if gaps:
            yield task, a, b, len(gaps), *paired_over_seeds(gaps, resamples)


def draw(runs: list[Finished], path: Path) -> None:
    """Accuracy on the selection split against updates, rollouts and seconds (paper, Fig. 1), a row a task, a colour a method.

    Thin: each seed; thick: their mean.
    """
    found = groups(runs)
    tasks, methods = (list(dict.fromkeys(names)) for names in zip(*found, strict=True))
    figure, axes = axes_of(len(tasks), len(COSTS), (5 * len(COSTS), 3.6 * len(tasks)))
    for (row, task), (column, cost) in product(enumerate(tasks), enumerate(COSTS)):
        axis = axes[row][column]
        for method in (method for of, method in found if of == task):
            draw_group(axis, found[task, method], cost, f"C{methods.index(method)}", method)
        axis.set(xlabel=cost, title=task)
        if not axis.lines:
            axis.text(
                0.5, 0.5, "not recorded: from DVC's cache", ha="center", transform=axis.transAxes
            )
    axes[0][0].set_ylabel("accuracy on the selection split")
    for row in axes:
        row[0].legend()
    save_figure(figure, path)


def print_comparison(params: Params, names: Sequence[str], out: Path) -> None:
    """The table, rendered for a terminal."""
    print_markdown(compare(params, names, out))
