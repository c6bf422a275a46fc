"""Tables of a comparison of finished runs, as values and as Markdown."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from dopsd.analysis.html_report.comparison_page import comparison_page
from dopsd.analysis.html_report.comparison_text import (
    ABSENT,
    Settings,
    certainty_text,
    of_starts,
    of_weights,
    seed_spread,
    verdicts,
)
from dopsd.analysis.html_report.facts import ComparisonFacts
from dopsd.analysis.html_report.page import digest_of, write_page
from dopsd.analysis.results import Finished, between_runs, paired_over_seeds, records_of
from dopsd.analysis.tables import (
    RESAMPLED,
    chosen_on,
    cost_cells,
    gaps_of,
    groups,
    head,
    line,
    markdown_of,
    mean_curve,
    means,
    names_of,
    paper_tables,
    points_in_words,
    row_of,
    speeds,
    titled,
)
from dopsd.config.params import Params
from dopsd.config.params_file import flat
from dopsd.core.files import WORK, read_json
from dopsd.core.metrics import COUNTED
from dopsd.core.statistics import gap, percent, within
from dopsd.models.backends import in_words
from dopsd.pipeline.results.repeat import repeat_text
from dopsd.pipeline.results.run_report import refresh, staleness
from dopsd.tasks.registry import is_graded
from dopsd.training.run_identity import read_identity, settings_of

COST_COLUMNS = ("updates", *COUNTED, "seconds")
Rows = list[dict[str, Any]]
Tables = dict[str, Rows]


def values(params: Params, runs: list[Finished]) -> Tables:
    """Return the tables as rows of unrounded values: runs, means, pairs and reached."""
    resamples, baseline = params.evaluate.bootstrap, params.compare.baseline
    columns: tuple[str, ...] = ("task", "method", "seeds", "trained", "difference", "cost")
    tables = {"runs": [row_of(run) for run in runs]}
    tables["means"] = [dict(zip(columns, row, strict=True)) for row in means(runs, resamples)]
    columns = ("task", "method", "seeds", "base", "area", "difference", "points")
    tables["speed"] = [dict(zip(columns, row, strict=True)) for row in speeds(runs, resamples)]
    columns = ("task", "first", "second", "seeds", "difference", "interval")
    columns += ("by_seed", "problem_error")
    tables["pairs"] = [dict(zip(columns, row, strict=True)) for row in pairs(runs, resamples)]
    columns = ("task", "method", "seeds", "best", "cost")
    tables["reached"] = [dict(zip(columns, row, strict=True)) for row in reached(runs, baseline)]
    return tables


def markdown(
    tables: Tables,
    runs: list[Finished],
    baseline: str,
    settings: Settings,
    graded: Sequence[str] = (),
) -> str:
    """Return the tables as Markdown.

    They are: which method is better and what limits that, each run, each method over its seeds,
    methods in pairs, the cost of reaching the baseline's best accuracy, and the paper's numbers.
    """
    names, tables = names_of(runs), titled(tables, runs)
    baseline = next((name for (_, method), name in names.items() if method == baseline), baseline)
    lines = [*(f"**{text}**\n" for text in verdicts(tables["means"], tables["pairs"]))]
    lines += [f"{text}\n" for text in of_weights(runs, settings) + of_starts(runs)]
    lines += [f"{text}\n" for text in map(seed_spread, tables["pairs"]) if text]
    scores = "is the mean score: the share of an answer that is right"
    lines += [f"Accuracy on {task} {scores}.\n" for task in graded]
    lines += [*_runs(tables["runs"], runs), *_means(tables["means"])]
    lines += _pairs(tables["pairs"]) if tables["pairs"] else []
    lines += _speed(tables["speed"]) if tables["speed"] else []
    lines += _reached(tables["reached"], baseline) if tables["reached"] else []
    for task in dict.fromkeys(run.task for run in runs):
        of_task = {method: name for (t, method), name in names.items() if t == task}
        lines += [row for paper in paper_tables(task, of_task) for row in markdown_of(paper)]
    return "\n".join(lines) + "\n"


def _runs(rows: Rows, runs: list[Finished]) -> list[str]:
    splits = " and ".join(dict.fromkeys(chosen_on(run) for run in runs))
    lines = [
        "Accuracy is on test, in %, with its 95% interval.",
        "The difference to the base is paired by problem.",
        f"Costs are those until the checkpoint, which was chosen on {splits}.",
        "",
        *head("run", "n", "base", "trained", "difference", "update", *COUNTED, "seconds"),
    ]
    for row in rows:
        sides = [within(row[side], row[f"{side}_interval"]) for side in ("base", "trained")]
        difference = gap(row["difference"], row["interval"])
        lines.append(
            line(row["run"], row["n"], *sides, difference, row["update"], *cost_cells(row))
        )
    return lines


def _means(rows: Rows) -> list[str]:
    return [
        "",
        f"Accuracies and costs are means over seeds. {RESAMPLED}",
        "",
        *head("task", "method", "seeds", "trained", "difference", *COST_COLUMNS),
        *(
            line(
                *(row[name] for name in ("task", "method", "seeds")),
                within(*row["trained"]),
                gap(*row["difference"]),
                *cost_cells(row["cost"], COST_COLUMNS),
            )
            for row in rows
        ),
    ]


def _pairs(rows: Rows) -> list[str]:
    return [
        "",
        "Methods in pairs, over the seeds that both have.\nDifferences are paired by problem.",
        "",
        *head("task", "first", "second", "seeds", "first - second", "by seed", "how sure"),
        *(
            line(
                *(row[name] for name in ("task", "first", "second", "seeds")),
                gap(row["difference"], row["interval"]),
                ", ".join(percent(value, "+") for value in row["by_seed"]),
                certainty_text(row["interval"], row["by_seed"]),
            )
            for row in rows
        ),
    ]


def _speed(rows: Rows) -> list[str]:
    return [
        "",
        "Accuracy on test in % with fewer steps (`evaluate.curve`).",
        "The area is that under the points with fixed steps, as a mean in %.",
        "",
        *head("task", "method", "seeds", "base", "area", "difference", "steps: accuracy"),
        *(
            line(
                *(row[name] for name in ("task", "method", "seeds")),
                *(percent(row[name]) for name in ("base", "area")),
                gap(*row["difference"]),
                points_in_words(row["points"]),
            )
            for row in rows
        ),
    ]


def _reached(rows: Rows, baseline: str) -> list[str]:
    return [
        "",
        f"Cost until a method first reaches the best accuracy of `{baseline}`.",
        "Accuracies are those of mean curves on the selection split, over the shared seeds.",
        "",
        *head("task", "method", "seeds", "best to reach", *COST_COLUMNS),
        *(
            line(
                *(row[name] for name in ("task", "method", "seeds")),
                percent(row["best"]),
                *cost_cells(row["cost"], COST_COLUMNS),
            )
            for row in rows
        ),
    ]


def reached(
    runs: list[Finished], baseline: str
) -> Iterator[tuple[str, str, int, float, dict[str, float] | None]]:
    """Yield for every method the cost at which its mean curve reaches the baseline's best accuracy.

    Yields:
        Task, method, number of shared seeds, accuracy to reach, and the cost; None if the method
        never reaches it. Nothing with races, after which few checkpoints have exact scores.
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
            best = max((accuracy for accuracy, _ in _trained(baseline_runs)), default=None)
            is_raced = any(run.is_raced for run in method_runs + baseline_runs)
            if best is not None and not is_raced:  # runs that ended early may share no checkpoint
                reaching = (cost for accuracy, cost in _trained(method_runs) if accuracy >= best)
                cost = next(reaching, None)
                yield task, method, len(seeds), best, cost


def _trained(group: list[Finished]) -> list[tuple[float, dict[str, float]]]:
    """Return the mean curve of trained checkpoints: without what training began with."""
    return [(accuracy, cost) for accuracy, cost in mean_curve(group) if cost["updates"]]


def pairs(
    runs: list[Finished], resamples: int
) -> Iterator[tuple[str, str, str, int, float, tuple[float, float], list[float], float]]:
    """Yield for every two methods of a task their mean difference over seeds and problems.

    Yields:
        Task, first method, second method, number of shared seeds, difference in accuracy (first
        minus second), its bootstrap interval, the differences of each seed, and the standard error
        of one of these over problems (the largest of them).
    """
    runs_by_method = groups(runs)
    for (task, a), (other_task, b) in combinations(runs_by_method, 2):
        gaps = (
            gaps_of(runs_by_method[task, a], runs_by_method[other_task, b])
            if task == other_task
            else []
        )
        if gaps:
            by_seed = [fmean(seed_gaps) for seed_gaps in gaps]
            error = max(pstdev(seed_gaps) / len(seed_gaps) ** 0.5 for seed_gaps in gaps)
            yield task, a, b, len(gaps), *paired_over_seeds(gaps, resamples), by_seed, error


PAGE = "comparison.html"
FIRST = ("train.weights", "train.start_from", "train.reference")  # of the settings that differ
OF_THE_RUN = ("seed", "task", "method")  # recorded settings that name the run


def write_comparison(
    params: Params, runs: list[Finished], settings: Settings, tables: Tables, page: Path, out: Path
) -> None:
    """Write the page of a comparison, and the report of each run where it is out of date.

    Args:
        out: the folder in which the page will be read, from which its links lead.
    """
    pages = refresh(params, runs, "compare")
    facts = ComparisonFacts(
        runs=runs,
        tables=tables,
        settings=settings,
        warnings=between_runs(runs),
        measured_on={run.name: in_words(records_of(run.tested)) for run in runs},
        stale={run.name: reason for run in runs if (reason := _stale(params, run))},
        links={name: os.path.relpath(page, out) for name, page in pages.items()},
        bases={task: params.model_of(task).path for task in dict.fromkeys(r.task for r in runs)},
        baseline=params.compare.baseline,
        graded=graded_tasks(params, runs),
    )
    write_page(page, comparison_page(facts, digest_of(asdict(facts))))


def _stale(params: Params, run: Finished) -> str:
    return staleness(params.run(*run.parts), read_json(run.folder / "train.json", "dopsd train"))


def graded_tasks(params: Params, runs: list[Finished]) -> list[str]:
    """Return the tasks of runs that give partial scores."""
    tasks = dict.fromkeys(run.task for run in runs)
    return [task for task in tasks if is_graded(task, params.data.tasks[task])]


def settings_by_task(params: Params, runs: list[Finished]) -> Settings:
    """Return by task what `differing_settings` returns."""
    tasks = dict.fromkeys(run.task for run in runs)
    return {
        task: differing_settings(params, [run for run in runs if run.task == task])
        for task in tasks
    }


def differing_settings(params: Params, runs: list[Finished]) -> dict[str, dict[str, str]]:
    """Return the settings that differ between the methods of a task, by key and method.

    Those that all methods have come first.

    Args:
        runs: runs of one task; the first of each method counts.
    """
    first_runs: dict[str, Finished] = {}
    for run in runs:
        first_runs.setdefault(run.method, run)
    by_method = {method: _settings_of(params, run) for method, run in first_runs.items()}
    keys = sorted({key for settings in by_method.values() for key in settings})
    rows = {
        key: {method: settings.get(key, ABSENT) for method, settings in by_method.items()}
        for key in keys
    }
    keys = [*FIRST, *(key for key in keys if key not in FIRST)]
    shared_first = sorted(keys, key=lambda key: ABSENT in rows[key].values())
    return {key: rows[key] for key in shared_first if len(set(rows[key].values())) > 1}


def _settings_of(params: Params, run: Finished) -> dict[str, str]:
    """Return a run's settings as recorded in training, else those of params.yaml.

    The algorithm's own section is called `method`, so that equal keys of two methods meet.
    """
    run_settings = params.run(*run.parts)
    fingerprint = read_json(run.folder / "train.json", "dopsd train")["fingerprint"]
    record = read_identity(WORK / fingerprint)
    decisive, ends = settings_of(run_settings)
    settings = dict(record["settings"] if record else decisive)
    shown = {name: value for name, value in settings.items() if name not in OF_THE_RUN}
    shown["method"] = shown.pop(run_settings.kind)
    shown["train"] = {**shown["train"], **(record["ends"] if record else ends)}
    shown["train"]["start_from"] = run.start.folder if run.start else None
    return {key: repeat_text(value) for key, value in flat(shown).items()}
