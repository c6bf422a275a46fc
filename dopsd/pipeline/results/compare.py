"""`dopsd compare`: put finished runs side by side: paired intervals, and accuracy against cost.

The cost of an update depends on the method. So curves are drawn against updates, rollouts and
seconds.
"""

import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

from dopsd.algorithms.common.config import BETWEEN, kind_of
from dopsd.algorithms.registry import ALGORITHMS
from dopsd.analysis.figures import axes_of, legend_below, percent_axis, save_figure
from dopsd.analysis.results import COSTS, Finished, between_runs, rounds_differently
from dopsd.analysis.tables import draw_group, groups, names_of
from dopsd.config.params import Params
from dopsd.core.errors import Code, unknown
from dopsd.core.extras import require
from dopsd.core.files import fresh_folder, read_json, write_json
from dopsd.core.palette import drawing_colours
from dopsd.core.paths import REPORTS, RUNS
from dopsd.core.progress import log
from dopsd.pipeline.results.ablate import variant_of_run
from dopsd.pipeline.results.comparison import (
    PAGE,
    graded_tasks,
    markdown,
    settings_by_task,
    values,
    write_comparison,
)
from dopsd.training.run_identity import identify

OUT = REPORTS / "compare"
ANSWERS, BASES = "answers of the base", "bases"
FILES = {"comparison.md", "comparison.json", "accuracy.png", PAGE}
LEGEND = 150  # characters in a line of the legend


def compare(params: Params, names: Sequence[str], out: Path = OUT) -> str:
    """Write table and figure of some runs to a folder, and return the table as Markdown.

    Args:
        names: Runs as task/method/seed; if empty, all finished runs of params.yaml's matrix.
        out: Folder to write; only an earlier comparison is replaced.
    """
    for package in ("matplotlib", "bokeh"):
        require("compare", package)
    if params.compare.baseline not in params.methods:
        known = type(params.method).model_fields
        raise Code.UNKNOWN_NAME.error(
            unknown(f"compare.baseline: {params.compare.baseline}", known)
        )
    check_replaceable(out)
    runs = list(dict.fromkeys(_parse_run(params, name) for name in names)) or _of_matrix(params)
    check(runs)
    runs = [replace(run, variant=_variant(params, run)) for run in runs]
    tables, warnings = values(params, runs), between_runs(runs)
    settings = settings_by_task(params, runs)
    text = "".join(f"Warning: {warning}\n\n" for warning in warnings)
    graded = graded_tasks(params, runs)
    text += markdown(tables, runs, params.compare.baseline, settings, graded)
    with fresh_folder(out.resolve()) as tmp:
        (tmp / "comparison.md").write_text(text, encoding="utf-8")
        notes = {
            "variants": {str(run): run.variant for run in runs if run.variant},
            "starts": {str(run): asdict(start) for run in runs if (start := run.start)},
            "warnings": warnings,
        }
        write_json(tmp / "comparison.json", {**tables, **notes})
        _draw(runs, tmp / "accuracy.png")
        write_comparison(params, runs, settings, tables, tmp / PAGE, out)
    others = ", ".join(sorted(FILES - {PAGE}))
    log(f"compare: wrote {len(runs)} runs to {out}/: {others}, and the report {out / PAGE}")
    return text


def _variant(params: Params, run: Finished) -> str:
    made = read_json(run.folder / "train.json", "dopsd train")
    return variant_of_run(params.run(*run.parts), made["fingerprint"])


def check_replaceable(out: Path) -> None:
    """Refuse a folder that holds anything but an earlier comparison, since it would be removed."""
    folder = out.resolve()
    if folder == folder.parent or (
        folder.exists() and not (folder.is_dir() and {p.name for p in folder.iterdir()} <= FILES)
    ):
        raise Code.OUTPUT_EXISTS.error(
            f"--out {out}: already exists and is not an earlier comparison; name a new folder"
        )


def _parse_run(params: Params, name: str) -> Finished:
    parts = name.split("/")
    if not re.fullmatch("[^/]*/[^/]*/[0-9]{1,19}", name):
        raise Code.ARGUMENT.error(
            f"compare: {name}: expected task/method/seed, such as sudoku/d_opsd/0"
        )
    run = Finished(parts[0], parts[1], int(parts[2]))
    is_variant = kind_of(run.method) in params.methods and run.is_tested  # of an earlier ablation
    methods = [*params.methods, run.method] if is_variant else params.methods
    for part, choices in zip(parts, (params.tasks, methods), strict=False):
        if part not in choices:
            listed = [choice for choice in choices if BETWEEN not in choice]
            variants = "; variants: `dopsd ablate`" if part == parts[1] else ""
            raise Code.UNKNOWN_NAME.error(unknown(f"compare: {name}: {part}", listed) + variants)
    return run


def _of_matrix(params: Params) -> list[Finished]:
    m = params.matrix
    matrix_runs = [Finished(*parts) for parts in product(m.tasks, m.methods, m.seeds)]
    unlisted = [
        str(path.parents[1].relative_to(RUNS))
        for path in sorted(RUNS.glob("*/*/*/test/paired.json"))
    ]
    unlisted = [name for name in unlisted if name not in map(str, matrix_runs)]
    if unlisted:
        log(
            "compare: finished runs outside params.yaml's matrix are skipped; name them to include"
            f" them: {' '.join(unlisted)}"
        )
    finished = [run for run in matrix_runs if run.is_tested]
    if len(finished) < len(matrix_runs):
        log(
            "compare: not finished yet:"
            f" {' '.join(str(run) for run in matrix_runs if run not in finished)}"
        )
    current_runs = [run for run in finished if is_current(params, run)]
    if not current_runs:
        raise Code.NO_RESULTS.error(
            "compare: no finished run of params.yaml's matrix; run `dopsd repro` first"
        )
    return current_runs


def is_current(params: Params, run: Finished) -> bool:
    """Tell whether a run was made with the settings of params.yaml; log where it was not."""
    made = read_json(run.folder / "train.json", "dopsd train")
    if identify(params.run(*run.parts)).is_current(made):
        return True
    log(
        f"compare: {run}: skipped, made with other settings, data or code; run `dopsd repro`, or"
        " name the run to include it"
    )
    return False


def check(runs: list[Finished]) -> None:
    """Refuse runs of one task that were tested under different conditions.

    Where rounding differs, as between devices, the base may answer differently: `between_runs`
    warns of that.
    """
    references: dict[str, list[Finished]] = {}  # by task, one for each kind of rounding
    for run in runs:
        others = references.setdefault(run.task, [])
        if not [other for other in others if _is_rounded_alike(other, run)]:
            others.append(run)


def _is_rounded_alike(first: Finished, second: Finished) -> bool:
    """Return whether the base must answer alike in two runs; refuse runs that do not match."""
    expected, actual = _test_conditions(first), _test_conditions(second)
    is_alike = not rounds_differently(first.tested["base"], second.tested["base"])
    required = expected.keys() - (set() if is_alike else {ANSWERS})
    mismatched = [n for n in expected if n in required and expected[n] != actual[n]]
    if mismatched:
        raise Code.NOT_COMPARABLE.error(
            f"compare: {first} and {second} have different {mismatched[0]}; run both with the same"
            " sections data, model, evaluate and select of params.yaml, or name only runs that"
            " match"
        )
    return is_alike


def _test_conditions(run: Finished) -> dict[str, Any]:
    """Return what must be equal for a comparison, by the name that messages use."""
    base, selection = run.tested["base"], run.selected
    conditions: dict[str, Any] = {
        "protocols": (selection["protocol"], base["protocol"]),
        "problems": sorted(base["per_problem"]),
    }
    return conditions | {
        ANSWERS: base["per_problem"],
        "selection splits": selection["split"],
        BASES: run.base_files,
    }


def _draw(runs: list[Finished], path: Path) -> None:
    """Draw accuracy on the selection split against updates, rollouts and seconds (paper, Fig. 1).

    One row for each task, one colour for each method. Thin lines are seeds, thick ones their means.
    """
    runs_by_method, names = groups(runs), names_of(runs)
    tasks = list(dict.fromkeys(task for task, _ in runs_by_method))
    colours = drawing_colours(ALGORITHMS, (method for _, method in runs_by_method))
    figure, axes = axes_of(len(tasks), len(COSTS), 0.6 + 2.9 * len(tasks))
    for (row, task), (column, cost) in product(enumerate(tasks), enumerate(COSTS)):
        axis = axes[row][column]
        for method in (method for group_task, method in runs_by_method if group_task == task):
            group = runs_by_method[task, method]
            start = ", from a checkpoint" if any(run.start for run in group) else ""
            draw_group(axis, group, cost, colours[method], names[task, method] + start)
        axis.set(xlabel=COSTS[cost])
        axis.set_title(task, loc="left", fontsize=10)
        percent_axis(axis)
        if not axis.lines:
            text = "not recorded:\nrun from DVC's cache"
            axis.text(0.5, 0.5, text, ha="center", va="center", transform=axis.transAxes)
    for row in axes:
        row[0].set_ylabel("accuracy on the selection split")
    longest = max(map(len, names.values()))
    legend_below(figure, axes[:, 0], columns=max(1, min(6, LEGEND // (longest + 6))))
    save_figure(figure, path)
