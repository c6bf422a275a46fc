"""Published accuracies in MLflow: under the names of our own runs, tagged, and only once."""

from __future__ import annotations

import pytest
from conftest import write_params
from glossary_checks import table, undescribed

from dopsd.cli.main import main
from dopsd.tracking.baselines import baselines
from dopsd.tracking.client import connect, tracking_uri


def test_rows_have_both_lengths_and_stand_under_our_names():
    rows = {(row.task, row.method): row for row in baselines() if row.other_protocol is None}
    assert len(rows) == 26
    assert rows["gsm8k", "d_opsd"].metrics == {
        "best/test_accuracy/256": 0.81,
        "best/test_accuracy/512": 0.822,
        "best/test_accuracy": 0.81,
        "best/update": 425.0,
    }
    assert (
        rows["sudoku", "vrpo"].metrics["best/test_accuracy"] == 0.096
    )  # length 256, the second of 128 and 256
    assert "best/update" not in rows["sudoku", "vrpo"].metrics
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
    found = {row.name: row for row in others}["published-countdown-wd1-2510.09541"]
    assert found.metrics["other_protocol/2510.09541/accuracy/256"] == 0.523
    found = {row.name: row for row in others}["published-countdown-espo-2512.03759"]
    assert found.metrics == {"other_protocol/2512.03759/accuracy/mean": 0.81}
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


def test_only_the_paper_that_says_so_is_tagged_as_selected_on_test():
    found = {(row.source, row.table.selection) for row in baselines()}
    assert found == {
        ("arXiv 2606.18195", "test"),
        ("arXiv 2512.03759", "not stated"),
        ("arXiv 2601.15165", "not stated"),
        ("arXiv 2510.09541", "not stated"),
    }


def test_importing_twice_changes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    write_params(tracking__enabled=True)
    assert main(["baselines", "import"]) == 0
    assert main(["baselines", "import"]) == 0
    client = connect(tracking_uri(None))
    runs = client.search_runs([client.get_experiment_by_name("dopsd").experiment_id])
    assert len(runs) == len(list(baselines()))
    assert {run.data.tags["source"] for run in runs} == {"published"}
    selections = {run.data.tags["paper"]: run.data.tags["selection"] for run in runs}
    assert selections["arXiv 2606.18195"] == "test"
    assert selections["arXiv 2510.09541"] == "not stated"
    said = capsys.readouterr().err
    assert (
        "arXiv 2510.09541: 5 rows, `other_protocol/2510.09541-three_shot/accuracy`: three examples"
        in said
    )
    assert "arXiv 2606.18195: 26 rows, `best/test_accuracy`: the best of 20 checkpoints" in said
    (found,) = [run for run in runs if run.info.run_name == "published-countdown-diffu_grpo"]
    assert found.data.metrics["best/test_accuracy"] == 0.313 and found.info.status == "FINISHED"
    assert len(client.get_metric_history(found.info.run_id, "best/test_accuracy")) == 1
    assert found.data.metrics["best/test_accuracy_percent"] == pytest.approx(31.3)
    write_params(tracking__enabled=False)
    assert main(["baselines", "import"]) == 2
    assert "tracking.enabled is false" in capsys.readouterr().err
