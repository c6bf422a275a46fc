"""MLflow on a local file: live copying, resume without doubles, and a server that is away."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import mlflow
import pytest
from conftest import write_params
from glossary_checks import check, table, undescribed
from toys import rewrite

from dopsd.algorithms.registry import ALGORITHMS
from dopsd.cli.main import main
from dopsd.config.loading import load_params
from dopsd.core.fingerprint import sha256
from dopsd.models.backends import in_words
from dopsd.tracking import client as client_module
from dopsd.tracking import log_uploader, publish_run
from dopsd.tracking.client import Identity, connect, find_run, send, sent_until, tracking_uri
from dopsd.tracking.log_uploader import mlflow_identity, upload_log
from dopsd.tracking.model_registry import promote_champion
from dopsd.training.run_identity import identify
from dopsd.training.run_settings import ADAPTING


@pytest.fixture
def project(project: Path, empty_database: Path) -> Path:
    shutil.copyfile(empty_database, "mlflow.db")
    return project


@pytest.fixture
def tracked(finished: Path) -> Path:
    """A finished run that MLflow has not heard of."""
    write_params(tracking__enabled=True)
    return finished


def state(client) -> dict[str, int]:
    experiment = client.get_experiment_by_name("dopsd").experiment_id
    runs = client.search_runs([experiment])
    points = {
        key: client.get_metric_history(runs[0].info.run_id, key) for key in runs[0].data.metrics
    }
    models = client.search_logged_models([experiment])
    versions = client.search_model_versions("name = 'dopsd-sudoku'")
    inputs = runs[0].inputs.dataset_inputs
    parts = {"runs": runs, "models": models, "versions": versions, "inputs": inputs}
    sizes = {name: len(part) for name, part in parts.items()}
    return sizes | {key: len(history) for key, history in points.items()}


def one_run(client):
    (run,) = client.search_runs([client.get_experiment_by_name("dopsd").experiment_id])
    return run


@pytest.mark.full
def test_a_run_that_came_through_dvc_without_its_checkpoints_has_its_best_one(tracked):
    """Card and tag name the commit that trained it, and not today's."""
    (machine,) = Path("work").glob("train-*/machine.json")
    parts = json.loads(machine.read_text())["parts"]
    machine.write_text(json.dumps({"parts": [parts[0] | {"commit": "c0ffee+"}]}))
    for folder in Path("runs/sudoku/d_opsd/0/train").glob("step-*"):
        shutil.rmtree(folder)
    assert main(["publish"]) == 0
    client = connect(tracking_uri(None))
    sizes = state(client)
    assert (sizes["models"], sizes["versions"], sizes["eval/accuracy"]) == (1, 1, 3)
    (model,) = client.search_logged_models([client.get_experiment_by_name("dopsd").experiment_id])
    selected = json.loads(Path("runs/sudoku/d_opsd/0/best/select.json").read_text())
    assert int(model.tags["update"]) == selected["update"]
    assert model.tags["dopsd.digest"] == selected["digest"]
    assert one_run(client).data.tags["mlflow.source.git.commit"] == "c0ffee"
    (version,) = client.search_model_versions("name = 'dopsd-sudoku'")
    assert "git commit `c0ffee`, with changes that were not committed" in version.description


def test_a_run_that_no_test_follows_ends_in_mlflow_with_its_training(tracked, monkeypatch):
    params = load_params()
    run = params.run("sudoku", "d_opsd", 0)
    who = mlflow_identity(run, params.tracking)

    def status_with(last: int | None) -> str:
        upload_log(who, identify(run).folder, lambda _: True, last)
        return one_run(connect(who.uri)).info.status

    updates = run.train.updates
    assert [status_with(n) for n in (None, updates + 1, updates)] == [
        "RUNNING", "RUNNING", "FINISHED"
    ]  # fmt: skip

    lasts: list[int | None] = []
    monkeypatch.setattr(log_uploader, "upload_log", lambda *words: lasts.append(words[-1]))
    for name in ("d_opsd", ADAPTING):
        log_uploader.run_log_uploader(params.run("sudoku", name, 0), params.tracking)
    assert lasts == [None, params.run("sudoku", ADAPTING, 0).train.updates]


@pytest.mark.full
def test_publishing_twice_changes_nothing_and_champion_points_to_the_selected_adapter(
    tracked, monkeypatch
):
    monkeypatch.setattr(publish_run, "PAGE", 1)  # the models come in several answers
    areas = {"base": 0.2, "best": 0.3, "difference": 0.1, "interval": [0.0, 0.2]}
    other = {"best": {"accuracy": 0.4}, "paired": {"difference": -0.1}}
    more = {"area": areas, "watched": {"gsm8k": other}}  # as with evaluate.curve and evaluate.watch
    rewrite(Path("runs/sudoku/d_opsd/0/test/paired.json"), **more)
    assert main(["publish"]) == 0
    client = connect(tracking_uri(None))
    first = state(client)
    assert (first["runs"], first["models"], first["versions"]) == (1, 2, 1)
    assert (first["train/loss"], first["eval/accuracy"], first["best/test_accuracy"]) == (4, 3, 1)
    assert first["best/rollouts"] == first["best/sampled_tokens"] == 1
    history = Mock(wraps=client.get_metric_history)
    with monkeypatch.context() as patch:
        patch.setattr(type(client), "get_metric_history", history)
        assert main(["publish"]) == 0
    names = [call.args[-1] for call in history.mock_calls]
    assert names.count("eval/accuracy") == 1  # not once for each checkpoint
    assert state(client) == first
    mlflow.set_tracking_uri(tracking_uri(None))
    folder = Path(mlflow.artifacts.download_artifacts("models:/dopsd-sudoku@champion"))
    selected = Path("runs/sudoku/d_opsd/0/best/adapter_model.safetensors")
    assert sha256(folder / "adapter_model.safetensors") == sha256(selected)
    card = (folder / "README.md").read_text()
    tested = json.loads(Path("runs/sudoku/d_opsd/0/test/paired.json").read_text())
    tested = tested["protocols"]["greedy"]
    for told in (
        f"{100 * tested['best']['accuracy']:.1f} [",
        sha256(Path("base/sudoku/model.safetensors")),
        "learning_rate: 0.003",
        f"Measured on: {in_words(tested['best']['measured_on'])}.",
    ):
        assert told in card
    experiment = client.get_experiment_by_name("dopsd")
    shown = json.loads(experiment.tags["mlflow.sharedViewState.dopsd-sudoku"])
    assert shown["compareRunCharts"][0]["metricKey"] == "best/test_accuracy_percent"
    assert {chart["metricSectionId"] for chart in shown["compareRunCharts"]} == {
        s["uuid"] for s in shown["compareRunSections"] if s["display"]
    }
    run = one_run(client)
    assert run.data.metrics["best/area/difference"] == 0.1
    assert run.data.metrics["watch/gsm8k/difference"] == -0.1
    logged = {**table("Training"), **ALGORITHMS.metrics("d_opsd")}
    own = {*undescribed({f"train/{name}" for name in logged}, run.data.metrics)}
    own |= {"best/selection_on_test", "other_protocol/2601.15165/accuracy/256"}
    own |= {"cost/gpu_hours"}  # this one trained on a CPU
    check(table("Published runs in MLflow"), own)
    assert run.data.params["train.learning_rate"] == str(load_params().train.learning_rate)
    assert run.data.tags.items() >= {"method": "d_opsd", "task": "sudoku"}.items()
    assert run.info.status == "FINISHED"
    (measured_on,) = tested["best"]["measured_on"]
    assert run.data.tags["measured_on.device"] == measured_on["device"]
    assert run.data.tags["measured_on.torch"] == measured_on["packages"]["torch"]


def test_a_worse_run_does_not_take_the_crown_and_one_judged_otherwise_does(tracked, capsys):
    assert main(["publish"]) == 0
    client = connect(tracking_uri(None))
    (first,) = client.search_model_versions("name = 'dopsd-sudoku'")
    better = float(first.tags["accuracy"])

    def crowned(**tags: str) -> int:
        made = client.create_model_version("dopsd-sudoku", first.source, tags=first.tags | tags)
        return promote_champion(client, "dopsd-sudoku", int(made.version))

    assert crowned(accuracy=str(better - 0.01)) == 1
    assert "the champion of dopsd-sudoku is still version 1" in capsys.readouterr().err
    assert crowned(accuracy=str(better + 0.01)) == 3
    assert crowned(accuracy="0.0", judged_by="other problems") == 4
    assert client.get_registered_model("dopsd-sudoku").aliases.keys() == {"champion"}


def test_a_password_in_the_address_is_not_shown():
    assert client_module.shown("https://me:secret@host:5000/x") == "https://host:5000/x"
    assert client_module.shown("sqlite:////data/a@b/mlflow.db") == "sqlite:////data/a@b/mlflow.db"


@pytest.mark.full
def test_a_protocol_may_be_named_by_a_number(project):
    greedy = load_params().model_dump()["evaluate"]["protocols"]["greedy"]
    named = {"evaluate__protocols": {"256": greedy}, "select__protocol": "256"}
    write_params(tracking__enabled=True, **named)
    for stage in ("train", "evaluate", "select", "test", "report", "publish"):
        assert main([stage]) == 0, stage
    client = connect(tracking_uri(None))
    assert state(client)["train/loss"] == 4  # sent while it trained, and not again by publish
    run = one_run(client)
    names = {"eval/accuracy", "best/test_accuracy", "best/test_accuracy/256"}
    assert names <= run.data.metrics.keys()
    artifacts = [item.path for item in client.list_artifacts(run.info.run_id, "report")]
    assert "report/sudoku-d_opsd-0.html" in artifacts and "report/accuracy.png" in artifacts


def test_steps_that_the_server_has_are_not_sent_again(project):
    params = load_params()
    who = mlflow_identity(params.run("sudoku", "d_opsd", 0), params.tracking)
    client = connect(who.uri)
    rows = [{"update": n, "loss": float(n)} for n in (1, 2, 3)]
    run = client_module.sync(client, who, rows[:2], Path("work/x"))
    assert sent_until(client, run) == 2
    assert client_module.sync(client, who, rows, Path("work/x")) == run == find_run(client, who)
    assert [p.step for p in client.get_metric_history(run, "train/loss")] == [1, 2, 3]
    send(client, run, [])


def test_a_line_still_being_written_is_left_for_later(tmp_path):
    log = tmp_path / "log.jsonl"
    assert client_module.whole_rows(log) == []
    log.write_text('{"update": 1, "loss": 2.0}\n{"update": 2, "lo')
    assert client_module.whole_rows(log) == [{"update": 1, "loss": 2.0}]


@pytest.mark.full
def test_a_server_that_is_gone_neither_stops_training_nor_hides(tracked, capsys):
    write_params(tracking__enabled=True, tracking__uri="http://127.0.0.1:9")
    assert main(["train", "--seed", "1"]) == 0
    capsys.readouterr()
    assert main(["publish"]) == 75
    said = capsys.readouterr().err
    assert "no expected answer from http://127.0.0.1:9" in said
    assert "publish again later. Or start a server with `mlflow server" in said
    assert len(said.strip().splitlines()) == 1


def test_without_mlflow_training_is_silent_and_says_so_once(project, monkeypatch, capsys):
    from dopsd.training import train

    monkeypatch.setattr(train, "find_spec", lambda name: None)
    write_params(tracking__enabled=True)
    assert main(["train"]) == 0
    assert capsys.readouterr().err.count("mlflow is not installed") == 1
    assert (identify(load_params().run("sudoku", "d_opsd", 0)).folder / "log.jsonl").is_file()


def test_a_project_of_any_name_has_its_runs_and_artifacts_in_its_folder(tracked, monkeypatch):
    """Links lead to the page that people open."""
    monkeypatch.setenv("DOPSD_MLFLOW_PAGE", "http://127.0.0.1:5001/")
    folder = tracked.parent / "around" / "p%20q %2F a?b#c ü 'x' \"y\" +&;$"
    shutil.copytree(tracked, folder)
    monkeypatch.chdir(folder)
    before = Path("mlflow.db").stat().st_size
    assert main(["publish"]) == 0
    client = connect(tracking_uri(None))
    assert client.list_artifacts(one_run(client).info.run_id)
    assert [*folder.glob("mlartifacts/*/*")] and [*folder.parent.iterdir()] == [folder]
    assert Path("mlflow.db").stat().st_size > before
    found = json.loads(Path("work/publish.json").read_text())
    assert found["page"] == "http://127.0.0.1:5001"
    assert found["comparison"]["sudoku"].startswith("http://127.0.0.1:5001/#/")


@pytest.mark.parametrize(
    ("uri", "told"),
    [
        ("localhost:5000", "localhost:5000: write http://localhost:5000"),
        ("10.0.0.1:5000/", "write http://10.0.0.1:5000/"),
        ("http://u:secret@h:5000/#/experiments/1", "of a page; write http://h:5000;"),
        ("http://h/mlflow/#/experiments/1/runs?a=b", "of a page; write http://h/mlflow;"),
        ("./mlruns", "expected http://HOST:PORT or sqlite:///FILE"),
        ("file:///data/mlruns", "expected http://HOST:PORT or sqlite:///FILE"),
        ("http:/h:5000", "expected http://HOST:PORT"),
        ("http://h:port", "expected http://HOST:PORT"),
        ("http://h:5000 ", "expected http://HOST:PORT"),
        ("htp://h:5000", "unsupported URI 'htp://h:5000'"),
        ("sqlite:////no/such/folder/mlflow.db", "there is no folder /no/such/folder; make it"),
        ("postgresql+nodriver://h/db", "postgresql.nodriver"),
    ],
)
def test_an_address_that_cannot_be_a_server_is_a_mistake_and_not_a_failure(
    here, monkeypatch, refusal, uri, told
):
    write_params(tracking__enabled=True, tracking__uri="http://a")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)  # it goes first
    said = refusal("baselines", "import")
    assert told in said and "publish again later" not in said and "secret" not in said


def test_an_address_in_the_settings_is_checked_and_without_one_it_is_a_file(project, refusal):
    write_params(tracking__uri="localhost:5000")
    assert "tracking.uri: localhost:5000: write http://localhost:5000" in refusal("check")
    assert tracking_uri("http://a") == "http://a"
    assert tracking_uri(None) == f"sqlite:///{os.getcwd()}/mlflow.db"


@pytest.mark.full
def test_a_deleted_experiment_is_named_with_the_command_that_restores_it(tracked, refusal):
    client = connect(tracking_uri(None))
    number = client.create_experiment("dopsd")
    client.delete_experiment(number)
    said = refusal("publish")
    assert "the experiment dopsd is deleted" in said and f"experiments restore -x {number}`" in said
    client.restore_experiment(number)
    assert main(["publish"]) == 0


def test_publish_is_refused_where_tracking_is_off_and_says_what_is_missing(
    project, capsys, refusal
):
    assert "tracking.enabled is false" in refusal("publish")
    write_params(tracking__enabled=True)
    assert main(["publish"]) == 0
    assert "has no test results yet" in capsys.readouterr().err


def test_results_of_other_settings_are_not_published_under_these(tracked, capsys):
    write_params(tracking__enabled=True, train__learning_rate=5e-4)
    assert main(["publish"]) == 0
    assert "made with other settings, data or code; skipped" in capsys.readouterr().err
    assert connect(tracking_uri(None)).search_model_versions("name = 'dopsd-sudoku'") == []


@pytest.mark.full
def test_the_follower_sends_everything_and_ends_with_training(project):
    write_params(tracking__enabled=True)
    assert main(["train"]) == 0
    client, params = connect(tracking_uri(None)), load_params()
    who = mlflow_identity(params.run("sudoku", "d_opsd", 0), params.tracking)
    runs: list = []
    for _ in range(3000):  # looks without `find_run`, which would make a run beside the follower's
        experiment = client.get_experiment_by_name("dopsd")
        runs = client.search_runs([experiment.experiment_id]) if experiment else []
        if runs and sent_until(client, runs[0].info.run_id) == 4:
            break
        time.sleep(0.2)
    assert len(runs) == 1
    run = find_run(client, who)
    assert run == runs[0].info.run_id
    assert [point.step for point in client.get_metric_history(run, "train/loss")] == [1, 2, 3, 4]
    assert client.get_run(run).data.params["method.name"] == "d_opsd"


def test_another_process_may_make_the_experiment_first(project, monkeypatch):
    run_identity = mlflow_identity(load_params().run("sudoku", "d_opsd", 0), load_params().tracking)
    client = connect(run_identity.uri)
    look, made = client.get_experiment_by_name, []

    def look_before_it_is_made(name: str) -> object:
        seen = look(name)
        if not made:
            made.append(client.create_experiment(name))
        return seen

    monkeypatch.setattr(client, "get_experiment_by_name", look_before_it_is_made)
    assert client_module.experiment_id(client, run_identity) == made[0]


def test_a_run_that_was_created_without_its_parameters_gets_them(project):
    who = mlflow_identity(load_params().run("sudoku", "d_opsd", 0), load_params().tracking)
    client = connect(who.uri)
    bare = Identity(**(who.__dict__ | {"params": {}}))
    run = find_run(client, bare)
    assert client.get_run(run).data.params == {}
    assert find_run(client, who) == run
    assert client.get_run(run).data.params["seed"] == "0"


@pytest.mark.full
def test_two_processes_may_make_the_local_database_at_once(project):
    Path("mlflow.db").unlink()
    code = "from dopsd.tracking.client import connect, tracking_uri;"
    code += " connect(tracking_uri(None)).search_experiments()"
    both = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
