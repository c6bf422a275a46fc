"""`dopsd compare`: finished runs side by side: a table with paired intervals, and accuracy against
what it cost.

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
    """Table and figure of these runs (none: those of params.yaml's matrix that have ended) in
    `out`; the table's text.
    """
    if params.compare.baseline not in params.methods:
        known = ", ".join(type(params.method).model_fields)
        raise DopsdError(f"compare.baseline: {params.compare.baseline}: unknown; there is {known}")
    check_replaceable(out)
    runs = [_parse_run(params, name) for name in dict.fromkeys(names)] or _of_matrix(params)
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
    folder = out.resolve()
    if folder == folder.parent or (
        folder.exists() and not (folder.is_dir() and {p.name for p in folder.iterdir()} <= FILES)
    ):
        raise DopsdError(
            f"--out {out}: is there already and not of an earlier comparison; name a new folder"
        )


def _parse_run(params: Params, name: str) -> Finished:
    parts = name.split("/")
    if not re.fullmatch("[^/]*/[^/]*/[0-9]{1,19}", name):
        raise DopsdError(f"compare: {name}: expected task/method/seed, such as sudoku/d_opsd/0")
    for part, choices in zip(
        parts, (sorted(type(params.data).model_fields), params.methods), strict=False
    ):
        if part not in choices:
            listed = ", ".join(choice for choice in choices if BETWEEN not in choice)
            variants = "; variants: `dopsd ablate`" if part == parts[1] else ""
            raise DopsdError(f"compare: {name}: {part} is unknown; there is {listed}{variants}")
    return Finished(parts[0], parts[1], int(parts[2]))


def _of_matrix(params: Params) -> list[Finished]:
    m = params.matrix
    matrix_runs = [Finished(*cell) for cell in product(m.tasks, m.methods, m.seeds)]
    unlisted = [
        str(path.parents[1].relative_to(RUNS))
        for path in sorted(RUNS.glob("*/*/*/test/paired.json"))
    ]
    unlisted = [name for name in unlisted if name not in map(str, matrix_runs)]
    if unlisted:
        log(
            "compare: finished too, but not in params.yaml's matrix; name them to see them:"
            f" {' '.join(unlisted)}"
        )
    finished = [run for run in matrix_runs if (run.folder / "test" / "paired.json").is_file()]
    if len(finished) < len(matrix_runs):
        log(
            "compare: not finished yet:"
            f" {' '.join(str(run) for run in matrix_runs if run not in finished)}"
        )
    current_runs = [run for run in finished if is_current(params, run)]
    if not current_runs:
        raise DopsdError("compare: no finished run of params.yaml's matrix; `dvc repro` makes them")
    return current_runs


def is_current(params: Params, run: Finished) -> bool:
    """Whether these results are of params.yaml's settings; a run that is named is taken as it
    is.
    """
    if run_identity.is_current(
        params.run(*run.parts), read_json(run.folder / "train.json", "dopsd train")
    ):
        return True
    log(
        f"compare: {run} was made with other settings, data or code; left out until `dvc repro` has"
        " run, or name it"
    )
    return False


def check(runs: list[Finished]) -> None:
    """Results that are missing, or not of the same problems, are named before anything is
    written.
    """
    reference_by_task: dict[str, Finished] = {}
    for run in runs:
        expected, actual = (
            _test_conditions(candidate)
            for candidate in (reference_by_task.setdefault(run.task, run), run)
        )
        if expected != actual:
            mismatched = next(name for name in expected if expected[name] != actual[name])
            raise DopsdError(
                f"compare: {reference_by_task[run.task]} and {run} have different {mismatched}: run"
                " both with the same data, model, evaluate and select sections of params.yaml, or"
                " name only runs that belong together"
            )


def _test_conditions(run: Finished) -> dict[str, Any]:
    """What must agree for runs to be laid side by side, by what it is called."""
    base, selection = run.tested["base"], run.selected
    conditions: dict[str, Any] = {
        "protocols": (selection["protocol"], base["protocol"]),
        "problems": sorted(base["per_problem"]),
    }
    return conditions | {
        "answers of the base": base["per_problem"],
        "selection splits": selection["split"],
    }


def values(params: Params, runs: list[Finished]) -> dict[str, list[dict[str, Any]]]:
    """What the table says, unrounded."""
    resamples, baseline = params.evaluate.bootstrap, params.compare.baseline
    columns: tuple[str, ...] = ("task", "method", "seeds", "trained", "difference", "cost")
    tables = {"runs": [row_of(run) for run in runs]}
    tables["means"] = [dict(zip(columns, row, strict=True)) for row in means(runs, resamples)]
    columns = ("task", "first", "second", "seeds", "difference", "interval")
    tables["pairs"] = [dict(zip(columns, row, strict=True)) for row in pairs(runs, resamples)]
    columns = ("task", "method", "seeds", "best", "cost")
    tables["reached"] = [dict(zip(columns, row, strict=True)) for row in reached(runs, baseline)]
    return tables


def table(params: Params, runs: list[Finished]) -> str:
    """Markdown: a row a run, a row a method, methods against each other, and what reaching a
    baseline's best cost.
    """
    resamples, baseline = params.evaluate.bootstrap, params.compare.baseline
    splits = " and ".join(dict.fromkeys(chosen_on(run) for run in runs))
    caption = (
        "Accuracy on test in % [95% interval] and paired difference to the base; costs until the"
        " checkpoint"
    )
    lines = [f"{caption}, which was chosen on {splits}.", ""]
    lines += head("run", "n", "base", "trained", "difference", "update", *COUNTED, "seconds")
    rows = [row_of(run) for run in runs]
    for row in rows:
        accuracies = [
            within(row["base"], row["base_interval"]),
            within(row["trained"], row["trained_interval"]),
        ]
        difference = gap(row["difference"], row["interval"])
        lines.append(
            line(row["run"], row["n"], *accuracies, difference, row["update"], *cost_cells(row))
        )
    lines += ["", f"Means over seeds, costs too. {RESAMPLED}", ""]
    lines += head(
        "task", "method", "seeds", "trained", "difference", "updates", *COUNTED, "seconds"
    )
    cost_columns = ("updates", *COUNTED, "seconds")
    for task, method, n, accuracy, over_base, cost in means(runs, resamples):
        lines.append(
            line(
                task, method, n, within(*accuracy), gap(*over_base), *cost_cells(cost, cost_columns)
            )
        )
    method_pairs = list(pairs(runs, resamples))
    if method_pairs:
        lines += [
            "",
            "Methods against each other over the seeds that both have, paired by problem.",
            "",
        ]
        lines += head("task", "first", "second", "seeds", "first - second")
        lines += [
            line(task, a, b, n, gap(mean, interval))
            for task, a, b, n, mean, interval in method_pairs
        ]
    reached_rows = list(reached(runs, baseline))
    if reached_rows:
        caption = (
            "The checkpoint at which the mean curve on the selection split first has the best of"
            f" `{baseline}`'s"
        )
        lines += ["", f"{caption}, over the seeds that both have:", ""]
        lines += head("task", "method", "seeds", "best to reach", *cost_columns)
        lines += [
            line(task, method, n, percent(best), *cost_cells(cost, cost_columns))
            for task, method, n, best, cost in reached_rows
        ]
    for task in dict.fromkeys(run.task for run in runs):
        lines += _published(task)
    return "\n".join(lines) + "\n"


def _published(task: str) -> list[str]:
    """The paper's rows of this task, told apart: another base, and chosen on the test set."""
    paper = published()
    rows = {method: tasks[task] for method, tasks in paper["methods"].items() if task in tasks}
    selection = "the best of 20 checkpoints on the test set"
    lines = [
        "",
        (
            f"PUBLISHED, not run here: {task}, LLaDA-8B-Instruct, accuracy in %, {selection}"
            f" ({paper['source']})."
        ),
        "",
    ]
    lines += head("task", "method", *(f"length {n}" for n in paper["lengths"][task]), "update")
    for method, row in rows.items():
        missing = ["not told"] * (len(paper["lengths"][task]) - len(row["accuracy"]))
        lines.append(line(task, method, *row["accuracy"], *missing, row.get("updates", "not told")))
    return lines


def reached(
    runs: list[Finished], baseline: str
) -> Iterator[tuple[str, str, int, float, dict[str, float] | None]]:
    """For every method of a task that the baseline ran on: the cost at which its mean curve has the
    baseline's best.
    """
    runs_by_method = groups(runs)
    for (task, method), group in runs_by_method.items():
        seeds = {run.seed for run in group} & {
            run.seed for run in runs_by_method.get((task, baseline), [])
        }
        if seeds:
            method_runs, baseline_runs = (
                [run for run in candidates if run.seed in seeds]
                for candidates in (group, runs_by_method[task, baseline])
            )
            best = max(
                (accuracy for accuracy, _ in mean_curve(baseline_runs)[1:]), default=None
            )  # the first is the base
            if best is not None:  # runs that ended early may share no checkpoint
                cost = next(
                    (cost for accuracy, cost in mean_curve(method_runs)[1:] if accuracy >= best),
                    None,
                )
                yield task, method, len(seeds), best, cost


def pairs(
    runs: list[Finished], resamples: int
) -> Iterator[tuple[str, str, str, int, float, tuple[float, float]]]:
    """Every two methods of a task: the mean difference over seeds and problems, and its bootstrap
    interval.
    """
    runs_by_method = groups(runs)
    for (task, a), (other_task, b) in combinations(runs_by_method, 2):
        gaps = (
            gaps_of(runs_by_method[task, a], runs_by_method[other_task, b])
            if task == other_task
            else []
        )
        if gaps:
            yield task, a, b, len(gaps), *paired_over_seeds(gaps, resamples)


def draw(runs: list[Finished], path: Path) -> None:
    """Accuracy on the selection split against updates, rollouts and seconds (paper, Fig. 1), a row
    a task, a colour a method.

    Thin: each seed; thick: their mean.
    """
    runs_by_method = groups(runs)
    tasks, methods = (list(dict.fromkeys(names)) for names in zip(*runs_by_method, strict=True))
    figure, axes = axes_of(len(tasks), len(COSTS), (5 * len(COSTS), 3.6 * len(tasks)))
    for (row, task), (column, cost) in product(enumerate(tasks), enumerate(COSTS)):
        axis = axes[row][column]
        for method in (method for group_task, method in runs_by_method if group_task == task):
            draw_group(
                axis, runs_by_method[task, method], cost, f"C{methods.index(method)}", method
            )
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
