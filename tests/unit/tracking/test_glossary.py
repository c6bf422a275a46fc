"""The glossary describes what is really logged, and nothing else; its sources exist."""

import json
from pathlib import Path
from pkgutil import resolve_name

import pytest
from glossary_checks import check, table, undescribed, unused
from metric_tables import TABLES

from dopsd.algorithms.registry import ALGORITHMS
from dopsd.analysis.results import Finished
from dopsd.config.loading import load_params
from dopsd.core.tables import read_log, read_table
from dopsd.pipeline.results import ablate, comparison
from dopsd.tasks.registry import TASKS
from dopsd.tracking.publish_run import _best_metrics
from dopsd.training.run_identity import read_identity

RUN = Path("runs/sudoku/d_opsd/0")


@pytest.fixture(scope="module")
def logged(two_updates: Path) -> dict[str, set[str]]:
    """What each algorithm logs in two updates."""
    names: dict[str, set[str]] = {name: set() for name in ALGORITHMS.names}
    for folder in two_updates.glob("work/train-*"):
        kind = read_identity(folder)["settings"]["method"]
        names[kind] |= {key for row in read_log(folder / "log.jsonl") for key in row}
    return names


@pytest.mark.parametrize("name", ALGORITHMS.names)
def test_what_an_algorithm_logs_is_in_the_glossary_and_in_its_own_folder(logged, name: str):
    own = ALGORITHMS.metrics(name).keys()
    check(own, undescribed(table("Training"), logged[name]))


def test_every_metric_of_training_is_logged(logged):
    assert unused(table("Training"), set.union(*logged.values())) == []


def names_of(report: dict) -> set[str]:
    """Names of a report's figures; not the settings that it was made with."""
    settings = {"task", "split", "protocol", "figures", "measured_on"}
    return (report.keys() - settings) | report.get("figures", {}).keys()


def test_what_evaluations_and_tests_write_is_in_the_glossary(finished):
    def read(path: str) -> dict:
        return json.loads((RUN / path).read_text())

    cached = [json.loads(path.read_text()) for path in Path("work/eval").glob("*.json")]
    tested = read("test/paired.json")["protocols"]["greedy"]
    reports = [report["value"] for report in cached]
    reports += [tested["base"], json.loads(Path("runs/sudoku/base.json").read_text())["greedy"]]
    reports += read_table(RUN / "curve.csv")
    names = set.union(*map(names_of, reports))
    check(table("Evaluation"), undescribed(TASKS.metrics("sudoku"), names))
    check(TASKS.metrics("sudoku"), undescribed(table("Evaluation"), names))
    texts = {"split", "protocol", "digest", "fingerprint", "code", "first_code", "measured_on"}
    of_started_runs = {"start", "start_accuracy"}  # tests/unit/pipeline/test_started_runs.py
    selection = (read("evaluate.json") | read("best/select.json")).keys() - texts
    check(table("Selection"), selection | of_started_runs)
    check(table("Test"), read("test.json")["greedy"].keys() - texts)
    check(table("Cost of a run"), read("train.json").keys() - texts)


def test_what_comparisons_show_is_in_the_glossary(finished):
    params, run = load_params(), Finished("sudoku", "d_opsd", 0)
    section = params.compare.model_copy(update={"baseline": "d_opsd"})
    params = params.model_copy(update={"compare": section})
    tables = comparison.values(params, [run])
    _, ablation = ablate.table(params, "divergence", {"first": [run], "second": [run]})
    rows = [row for rows in tables.values() for row in rows] + list(ablation.values())
    texts = {"run", "task", "method", "first", "second", "cost"}
    names = {name for row in rows for name in {*row, *row.get("cost", ())}}
    check(table("Comparisons"), names - texts)


def test_a_run_that_the_test_set_selected_is_named_so():
    side, protocols = {"accuracy": 0.5}, {}
    protocols["a"] = {"base": side, "best": side, "paired": {"difference": 0, "interval": [0, 0]}}
    chosen = {"protocol": "a", "split": "test", "accuracy": 0.5, "update": 1}
    names = _best_metrics(chosen, protocols)
    assert "best/selection_on_test" in names
    assert undescribed(table("Published runs in MLflow"), names) == []


def test_every_source_is_a_function():
    tables = [part.metrics for part in TABLES]
    tables += [kind.metrics(name) for kind in (ALGORITHMS, TASKS) for name in kind.names]
    for metric in {metric for metrics in tables for metric in metrics.values()}:
        source = resolve_name(metric.source)
        assert callable(source) or isinstance(source, property), metric.source


def test_reports_can_explain_every_metric_of_training_without_formulas():
    metrics = dict(table("Training"))
    for name in ALGORITHMS.names:
        metrics |= {f"{name}: {metric}": m for metric, m in ALGORITHMS.metrics(name).items()}
    formulas = [n for n, m in metrics.items() if "$" in (m.plain or m.meaning)]
    assert [name for name in formulas if "{" not in name] == []
