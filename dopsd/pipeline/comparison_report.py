"""Write the report of a comparison as one HTML file."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING

from dopsd.analysis.html_report.comparison_page import ComparisonFacts, comparison_page
from dopsd.analysis.html_report.limits import ABSENT
from dopsd.analysis.html_report.page import digest_of, write_page
from dopsd.analysis.measured import between_runs, records_of
from dopsd.config.params_file import flat
from dopsd.core.files import WORK, read_json
from dopsd.models.measured_on import in_words
from dopsd.pipeline.repeat import as_text
from dopsd.pipeline.run_report import refresh, staleness
from dopsd.tasks.registry import load_task
from dopsd.training.run_identity import record_of, settings_of

if TYPE_CHECKING:
    from pathlib import Path

    from dopsd.analysis.html_report.beginnings import Settings
    from dopsd.analysis.results import Finished
    from dopsd.config.params import Params
    from dopsd.pipeline.comparison import Tables

PAGE = "comparison.html"
FIRST = ("train.weights", "train.start_from", "train.reference")  # of the settings that differ
OF_THE_RUN = ("seed", "task", "method")  # recorded settings that name the run


def write_comparison(
    params: Params, runs: list[Finished], settings: Settings, tables: Tables, page: Path, out: Path
) -> None:
    """Write the page of a comparison, and the report of each run where it is out of date.

    Args:
        params: all settings.
        runs: the runs.
        settings: what `settings_by_task` returns.
        tables: what `dopsd.pipeline.comparison.values` returns.
        page: the file to write.
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
        graded=[
            task
            for task in dict.fromkeys(run.task for run in runs)
            if load_task(task, params.data.tasks[task]).graded
        ],
    )
    write_page(page, comparison_page(facts, digest_of(asdict(facts))))


def _stale(params: Params, run: Finished) -> str:
    return staleness(params.run(*run.parts), read_json(run.folder / "train.json", "dopsd train"))


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
        params: all settings.
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
    record = record_of(WORK / fingerprint)
    decisive, ends = settings_of(run_settings)
    settings = dict(record["settings"] if record else decisive)
    shown = {name: value for name, value in settings.items() if name not in OF_THE_RUN}
    shown["method"] = shown.pop(run_settings.kind)
    shown["train"] = {**shown["train"], **(record["ends"] if record else ends)}
    shown["train"]["start_from"] = run.start.folder if run.start else None
    return {key: as_text(value) for key, value in flat(shown).items()}
