"""`dopsd compare`: finished runs side by side: a table with paired intervals, and accuracy against
what it cost.

An update costs differently by method, so curves are drawn against updates, rollouts and seconds.
"""

from __future__ import annotations

import re
from itertools import product
from typing import TYPE_CHECKING, Any

from dopsd.algorithms.common.config import BETWEEN
from dopsd.analysis.figures import axes_of, save_figure
from dopsd.analysis.results import COSTS, Finished
from dopsd.analysis.tables import draw_group, groups, print_markdown
from dopsd.core.errors import DopsdError
from dopsd.core.extras import require
from dopsd.core.files import fresh_folder, read_json, write_json
from dopsd.core.paths import REPORTS, RUNS
from dopsd.core.progress import log
from dopsd.pipeline.comparison import table, values
from dopsd.training import run_identity

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from dopsd.config.params import Params

OUT = REPORTS / "compare"
FILES = {"comparison.md", "comparison.json", "accuracy.png"}


def compare(params: Params, names: Sequence[str], out: Path = OUT) -> str:
    """Table and figure of these runs (none: those of params.yaml's matrix that have ended) in
    `out`; the table's text.
    """
    require("compare", "matplotlib")
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
