"""A run that started from a checkpoint: its curve begins there, and its start is named."""

import hashlib
import html
import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from cells import finished, trained_with
from conftest import built_once, in_copy, small_params, write_params
from safetensors.torch import save

from dopsd.analysis.figures import beginning
from dopsd.analysis.html_report.run_charts import accuracy_chart
from dopsd.analysis.html_report.words import warnings
from dopsd.analysis.results import Finished
from dopsd.cli.main import main
from dopsd.config.loading import load_params
from dopsd.config.params import Params
from dopsd.core.files import write_json
from dopsd.core.paths import RunKey
from dopsd.core.tables import read_table
from dopsd.pipeline.results import compare
from dopsd.pipeline.results.run_report import gather
from dopsd.pipeline.stages import evaluate

WEIGHTS = save({"w": torch.ones(1)})
RUN, SFT = Path("runs/sudoku/d_opsd/0"), Path("runs/sudoku/sft/0")


def sha256_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture(scope="module")
def started_once(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a trained run that started from step 4 of sft."""

    def build(folder: Path) -> None:
        with in_copy(prepared, folder):
            write_params(train__learning_rate=0.01)
            for stage in ("train", "evaluate"):
                assert main([stage, "--method", "sft"]) == 0
            shutil.copytree(SFT / "train/step-000004", SFT / "best")
            write_params(train__start_from="sft")
            assert main(["train"]) == 0

    return built_once(tmp_path_factory, "started", build) / "project"


@pytest.fixture
def started(started_once: Path, project: Path) -> None:
    shutil.copytree(started_once, project, dirs_exist_ok=True)


def test_the_curve_of_a_started_run_begins_at_its_start(started, monkeypatch):
    asked = []
    kept = evaluate.Evaluator._evaluate

    def noting(self: evaluate.Evaluator, adapter: Path, *rest: object) -> object:
        asked.append(adapter)
        return kept(self, adapter, *rest)

    monkeypatch.setattr(evaluate.Evaluator, "_evaluate", noting)
    assert main(["evaluate"]) == 0
    rows, before = read_table(RUN / "curve.csv"), read_table(SFT / "curve.csv")
    assert [row["update"] for row in rows] == [0, 2, 4]
    assert rows[0] == before[-1] | {"update": 0}
    assert rows[0]["accuracy"] != before[0]["accuracy"]  # else this shows nothing
    assert SFT / "best" not in asked  # of the cache: the same weights, protocol and split
    found = json.loads((RUN / "evaluate.json").read_text())
    assert found["base"] == before[0]["accuracy"] and found["start"] == rows[0]["accuracy"]
    assert main(["select"]) == 0
    chosen = json.loads((RUN / "best/select.json").read_text())
    assert chosen["start_accuracy"] == rows[0]["accuracy"]
    assert chosen["base_accuracy"] == before[0]["accuracy"]


def test_a_start_that_is_no_longer_there_has_no_row(started, capsys):
    weights = "adapter_model.safetensors"
    shutil.copyfile(SFT / "train/step-000002" / weights, SFT / "best" / weights)
    assert main(["evaluate"]) == 0
    assert [row["update"] for row in read_table(RUN / "curve.csv")] == [2, 4]
    assert "runs/sudoku/sft/0/best no longer holds the checkpoint" in capsys.readouterr().err
    assert "start" not in json.loads((RUN / "evaluate.json").read_text())


@pytest.mark.full
def test_the_report_says_where_training_began(started):
    for stage in ("evaluate", "select", "test", "report"):
        assert main([stage]) == 0
    facts = gather(load_params(), RunKey("sudoku", "d_opsd", 0))
    chart = accuracy_chart(facts)
    assert "`runs/sudoku/sft/0/best`" in chart.note
    data = chart.figure.renderers[0].data_source.data
    assert data["accuracy"][0] == facts.selected["start_accuracy"] != data["base"][0]
    titles = [title for title, _ in warnings(facts)]
    assert "Started from a checkpoint" in titles
    is_worse = facts.selected["accuracy"] <= facts.selected["start_accuracy"]
    assert ("No better than its start" in titles) == is_worse
    assert beginning(facts.curve, "x") == "0: x"
    assert beginning(facts.curve[1:], "x") == "training began at x, not evaluated"


def test_a_comparison_names_the_start_and_what_it_had_cost(here):
    finished("sft", 0, {"a": 0.5, "b": 0.5}, seconds=[3.0, 4.0])
    finished("d_opsd", 0, {"a": 1.0, "b": 0.5}, seconds=[5.0, 5.0])
    (SFT / "best/adapter_model.safetensors").write_bytes(WEIGHTS)
    made = json.loads((RUN / "train.json").read_text())
    start = {"started_from": "runs/sudoku/sft/0/best", "start": sha256_of(WEIGHTS)}
    write_json(RUN / "train.json", made | start)
    write_json(RUN / "evaluate.json", {"start": 0.5})
    trained_with("d_opsd", 0, train={"reference": "start"})
    trained_with("sft", 0)
    params = Params.model_validate(small_params())
    names = ["sudoku/sft/0", "sudoku/d_opsd/0"]
    text = compare.compare(params, names)
    assert "d_opsd did not start from the base, but from `runs/sudoku/sft/0/best`" in text
    assert "2 updates, 4 rollouts, 7 seconds" in text
    page = (compare.OUT / "comparison.html").read_text()
    cautions, rest = page.split('id="cautions"')[1].split("</aside>", 1)
    shown = html.unescape(cautions).replace("<code>", "`").replace("</code>", "`")
    assert "2 updates, 4 rollouts, 7 seconds" in shown
    assert "`train.start_from`, `train.reference`" in shown
    methods = rest.split('id="methods"')[1].split("</section>")[0]
    assert "<code>d_opsd</code>: <code>runs/sudoku/sft/0/best</code>" in methods
    rows = dict(re.findall(r"<tr><td><code>([\w.]+)</code></td>(.*?)</tr>", page))
    assert rows["train.start_from"] == "<td>null</td><td>runs/sudoku/sft/0/best</td>"
    assert rows["train.reference"] == "<td>base</td><td>start</td>"
    found = json.loads((compare.OUT / "comparison.json").read_text())["starts"]
    costs = {"updates": 2, "rollouts": 4, "trajectories": 2, "sampled_tokens": 160, "seconds": 7}
    expected = {"folder": "runs/sudoku/sft/0/best", "costs": costs}
    assert found == {"sudoku/d_opsd/0": expected}
    (SFT / "best/adapter_model.safetensors").write_bytes(save({"w": torch.ones(2)}))
    assert "those of the start, which are not known here." in compare.compare(params, names)


def test_costs_of_a_start_include_those_of_its_own_start(here):
    for method, before in (("rft", ""), ("sft", "rft"), ("d_opsd", "sft")):
        finished(method, 0, {"a": 1.0})
        folder = Path("runs/sudoku") / method / "0"
        (folder / "best/adapter_model.safetensors").write_bytes(WEIGHTS)
        made = json.loads((folder / "train.json").read_text())
        start = {"started_from": f"runs/sudoku/{before}/0/best", "start": sha256_of(WEIGHTS)}
        write_json(folder / "train.json", made | (start if before else {}))
    start = Finished("sudoku", "d_opsd", 0).start
    assert start and start.costs and (start.costs["updates"], start.costs["rollouts"]) == (4, 8)


def test_all_weights_against_an_adapter_is_the_first_limit(here):
    for method in ("sft", "d_opsd"):
        finished(method, 0, {"a": 1.0, "b": 0.5})
    trained_with("sft", 0, train={"weights": "all", "learning_rate": 1e-3})
    trained_with("d_opsd", 0, train={"learning_rate": 3e-3})
    text = compare.compare(
        Params.model_validate(small_params()), ["sudoku/sft/0", "sudoku/d_opsd/0"]
    )
    assert "all weights train in sft (`train.weights: all`)" in text
    page = (compare.OUT / "comparison.html").read_text()
    rows = re.findall(r"<tr><td><code>([\w.]+)</code></td>(.*?)</tr>", page)
    assert rows[0] == ("train.weights", "<td>all</td><td>lora</td>")
    cautions = page.split('id="cautions"')[1].split("</aside>", 1)[0]
    assert "all weights train in sft" in cautions.split("<li>")[1]
