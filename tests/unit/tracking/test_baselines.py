"""Published accuracies in MLflow: under the names of our own runs, tagged, and only once."""

import shutil

import pytest
from conftest import write_params
from glossary_checks import table, undescribed

from dopsd.cli.main import main
from dopsd.tracking.baselines import baselines, metric_of
from dopsd.tracking.client import connect, tracking_uri

pytestmark = pytest.mark.full


def test_rows_have_both_lengths_and_stand_under_our_names():
    rows = {(row.task, row.method): row for row in baselines() if row.other_protocol is None}
    assert len(rows) == 26
    assert rows["gsm8k", "d_opsd"].metrics == {
        "best/test_accuracy/256": 0.81,
        "best/test_accuracy/512": 0.822,
        "best/test_accuracy": 0.81,
        "best/update": 425.0,
    }
    vrpo = rows["sudoku", "vrpo"].metrics
    assert vrpo["best/test_accuracy"] == 0.096  # length 256, the second of 128 and 256
    assert "best/update" not in vrpo
    names = {name for row in baselines() for name in row.metrics}
    assert undescribed(table("Published runs in MLflow"), names) == []


def test_rows_of_another_protocol_share_no_column_and_no_run_with_ours():
    ours, others = [], []
    for row in baselines():
        (ours if row.other_protocol is None else others).append(row)
    assert others and all(row.other_protocol and row.source for row in others)
    columns = [{name for row in rows for name in row.metrics} for rows in (ours, others)]
    assert not columns[0] & columns[1]
    assert len({row.name for row in baselines()}) == len(ours) + len(others)
    found = {row.name: row.metrics for row in others}
    wd1, espo = (found[f"published-countdown-{x}"] for x in ("wd1-2510.09541", "espo-2512.03759"))
    assert wd1["other_protocol/2510.09541/accuracy/256"] == 0.523
    assert espo == {"other_protocol/2512.03759/accuracy/mean": 0.81}
    unigrpo = {row.task: row for row in others if row.method == "unigrpo"}  # not implemented here
    assert unigrpo["gsm8k"].accuracy == {128: 0.749, 256: 0.825, 512: 0.827}
    assert unigrpo["sudoku"].accuracy[256] == 0.67 and len(unigrpo) == 4
    assert "another split" in unigrpo["sudoku"].other_protocol


def test_no_metric_is_of_two_protocols():
    """JustGRPO's 256 steps and SPG's half as many had one name, and so one chart."""
    protocols: dict[str, set[str | None]] = {}
    for row in baselines():
        for name in row.metrics:
            protocols.setdefault(name, set()).add(row.other_protocol)
    assert {name: found for name, found in protocols.items() if len(found) > 1} == {}
    spg = {row.task: row for row in baselines() if row.method == "spg"}
    assert list(spg["sudoku"].metrics)[1] == "other_protocol/2510.09541-three_shot/accuracy/256"


def test_importing_twice_changes_nothing(here, monkeypatch, capsys, refusal, empty_database):
    """Those of Countdown and of SPG: each row is several writes to the disk."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    shutil.copyfile(empty_database, "mlflow.db")
    write_params(tracking__enabled=True)
    some = [row for row in baselines() if row.task == "countdown" or row.method == "spg"]
    monkeypatch.setattr("dopsd.tracking.baselines.baselines", lambda: iter(some))
    assert main(["baselines", "import"]) == 0
    assert main(["baselines", "import"]) == 0
    client = connect(tracking_uri(None))
    runs = client.search_runs([client.get_experiment_by_name("dopsd").experiment_id])
    assert len(runs) == len(some)
    assert {run.data.tags["source"] for run in runs} == {"published"}
    selections = {run.data.tags["paper"]: run.data.tags["selection"] for run in runs}
    assert len(selections) > 2 and {*selections.values()} == {"test", "not stated"}
    assert [paper for paper, by in selections.items() if by == "test"] == ["arXiv 2606.18195"]
    said = capsys.readouterr().err
    column = "other_protocol/2510.09541-three_shot/accuracy"
    for source, metric in (("2510.09541", column), ("2606.18195", "best/test_accuracy")):
        count = sum(metric_of(row.table) == metric for row in some)
        assert count and f"arXiv {source}: {count} rows, `{metric}`: " in said
    (found,) = [run for run in runs if run.info.run_name == "published-countdown-diffu_grpo"]
    assert found.data.metrics["best/test_accuracy"] == 0.313 and found.info.status == "FINISHED"
    assert len(client.get_metric_history(found.info.run_id, "best/test_accuracy")) == 1
    assert found.data.metrics["best/test_accuracy_percent"] == pytest.approx(31.3)
    write_params(tracking__enabled=False)
    assert "tracking.enabled is false" in refusal("baselines", "import")
