"""The saved view of a task: own runs first, percent, colours of methods, and a readable axis."""

import json
import os
import subprocess
import sys
from math import inf
from pathlib import Path
from unittest.mock import Mock

import pytest
from conftest import ROOT, write_params
from ports import free_port, until_healthy

from dopsd.algorithms.registry import ALGORITHMS
from dopsd.cli.main import main
from dopsd.core.palette import NEUTRAL, PALETTE, shade_of
from dopsd.tracking import dashboard
from dopsd.tracking.client import Identity, connect, find_run, log_once, send, with_percent
from dopsd.tracking.dashboard import readable_range, view_link

pytestmark = pytest.mark.full

PAPERS_MODEL = "GSAI-ML/LLaDA-8B-Instruct"


def add_run(client, method: str, seed: int = 0, losses: tuple = (2.0, 1.0), **tags: str) -> str:
    values = {"task": "sudoku", "method": method, "seed": str(seed), "source": "trained"} | tags
    name = f"{method}-{seed}-{values['source']}"
    run = find_run(client, Identity("", "dopsd", name, name, values, {"seed": str(seed)}))
    send(client, run, [{"update": n, "loss": loss} for n, loss in enumerate(losses, 1)])
    return run


def saved_view(client, task: str = "sudoku") -> dict:
    experiment = client.get_experiment_by_name("dopsd")
    dashboard.save(client, experiment.experiment_id, task)
    tags = client.get_experiment(experiment.experiment_id).tags
    return json.loads(tags[f"mlflow.sharedViewState.dopsd-{task}"])


@pytest.fixture
def client(tmp_path: Path):
    return connect(f"sqlite:///{tmp_path / 'mlflow.db'}")


def test_a_run_of_huge_losses_does_not_stretch_the_axis():
    sane = [2.0, 1.0, 1.5]
    assert readable_range([sane, [0.02, 0.01]]) is None  # methods differ, and all is shown
    assert readable_range([sane, [1e6, 2e6, 3e6]]) == pytest.approx((0.95, 2.05))
    assert readable_range([[1.0, 1.0, 2.0, 1e6]]) == pytest.approx((0.95, 2.05))  # one run alone
    assert readable_range([[0.0, 0.0], [inf]]) is None
    assert readable_range([[-3.0, -1.0, -2.0], [1.0, 1.0, -1e6]]) == pytest.approx((-3.2, 1.2))


def test_percent_is_logged_beside_shares_and_only_for_those_of_charts():
    values = {"eval/accuracy": 0.5, "eval/low": 0.4, "train/loss": 1.0}
    assert with_percent(values) == values | {"eval/accuracy_percent": 50.0}


def test_published_rows_show_only_beside_runs_of_their_model_and_protocol(client):
    add_run(client, "d_opsd", model="base/sudoku", protocol="greedy")
    add_run(client, "vrpo", source="published", model="LLaDA-8B-Instruct", protocol="256")
    view = saved_view(client)
    assert view["searchFilter"] == "tags.task = 'sudoku' AND tags.source = 'trained'"
    assert "groupBy" not in view

    add_run(client, "rft", model=PAPERS_MODEL, protocol="256")
    view = saved_view(client)
    assert view["searchFilter"] == "tags.task = 'sudoku'"
    assert view["groupsExpanded"]["tag.source.published"] is False  # folded: not drawn
    assert view["useGroupedValuesInCharts"] is False
    assert view["orderByKey"] == "metrics.`best/test_difference`"  # published rows have none


def test_a_view_of_many_runs_asks_for_the_curves_of_those_that_it_draws(client, monkeypatch):
    monkeypatch.setattr(dashboard, "PAGE", 2)
    monkeypatch.setattr(dashboard, "RUNS_SHOWN", 2)
    runs = {add_run(client, "d_opsd", seed): seed for seed in range(5)}
    for run, seed in runs.items():
        log_once(client, run, {"best/test_accuracy": 0.1 * seed}, 0)
    history = Mock(wraps=client.get_metric_history)
    monkeypatch.setattr(client, "get_metric_history", history)
    saved_view(client)
    assert [runs[call.args[0]] for call in history.mock_calls] == [4, 3]  # the most accurate ones
    assert all("mlflow.runColor" in client.get_run(run).data.tags for run in runs)


def test_only_charts_that_some_run_fills_in_percent(client):
    first = add_run(client, "d_opsd")
    (chart,) = saved_view(client)["compareRunCharts"]
    assert chart["metricKey"] == "train/loss"
    log_once(client, first, with_percent({"eval/accuracy": 0.5}), 0)
    charts = saved_view(client)["compareRunCharts"]
    assert charts[0]["metricKey"] == "eval/accuracy_percent"
    assert charts[0]["selectedMetricKeys"] == ["eval/accuracy_percent"]


def test_runs_have_the_colour_of_their_method_and_a_users_choice_stays(client):
    cells = (("d_opsd", 0), ("d_opsd", 1), ("rft", 0), ("removed", 0))
    runs = {cell: add_run(client, *cell) for cell in cells}
    client.set_tag(runs["rft", 0], "mlflow.runColor", "#123456")
    saved_view(client)
    colours = {name: client.get_run(run).data.tags["mlflow.runColor"] for name, run in runs.items()}
    own = PALETTE[ALGORITHMS.position("d_opsd")]
    assert colours == {
        ("d_opsd", 0): own,
        ("d_opsd", 1): shade_of(own, 1),
        ("rft", 0): "#123456",
        ("removed", 0): NEUTRAL,
    }


@pytest.fixture
def server(tmp_path: Path):
    """A real MLflow server; its address."""
    port = free_port()
    words = ("mlflow", "server", "--workers", "1", "--host", "127.0.0.1", "--port", str(port))
    words += ("--backend-store-uri", f"sqlite:///{tmp_path / 'server.db'}", "--no-serve-artifacts")
    words += ("--default-artifact-root", (tmp_path / "artifacts").as_uri())
    env = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with (tmp_path / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *words], env=env, stdout=log, stderr=log, start_new_session=True
        )
    try:
        until_healthy(f"http://127.0.0.1:{port}/health", process, tmp_path / "server.log")
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, 15)
        process.wait(60)


def test_two_published_runs_and_a_collapsed_one_on_a_real_server(finished, server, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    write_params(tracking__enabled=True, matrix__methods=["d_opsd", "rft"])
    for stage in ("train", "evaluate", "select", "test", "report"):
        assert main([stage, "--method", "rft"]) == 0, stage
    assert main(["publish"]) == 0
    client = connect(server)
    (run, other) = client.search_runs([client.get_experiment_by_name("dopsd").experiment_id])
    worst = max(client.get_run(r.info.run_id).data.metrics["train/loss"] for r in (run, other))
    add_run(client, "ar_opsd", losses=(1e6, 2e6, 3e6))
    view = saved_view(client)
    loss = next(c for c in view["compareRunCharts"] if c["metricKey"] == "train/loss")
    assert worst < loss["range"]["yMax"] < 1e4
    assert view["compareRunCharts"][0]["metricKey"] == "best/test_accuracy_percent"
    percent, share = (run.data.metrics[f"best/test_accuracy{end}"] for end in ("_percent", ""))
    assert percent == 100 * share
    assert run.data.tags["protocol"] == "greedy"
    # the page that `make up` prints
    code = "import sys; sys.path.insert(0, sys.argv[1]); import pages;"
    code += " print(pages.experiment_pages(sys.argv[2]))"
    words = [sys.executable, "-c", code, str(ROOT / "infra/local"), server]
    pages = subprocess.check_output(words, text=True)
    page = view_link(server, run.info.experiment_id, "sudoku")
    assert "/runs?workflowType=machine_learning&" in page and f"'{page}'" in pages
