"""Each score says which device and which versions of packages computed it."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from toy_runs import evaluator

from dopsd.core.machine import device_name
from dopsd.models import backends
from dopsd.models.config import ModelConfig

CPU = torch.device("cpu")


def on(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    """Name the device of all scores from here on."""
    monkeypatch.setattr(backends, "device_name", lambda _: device)


def test_a_record_has_no_times_no_paths_and_no_threads():
    model = ModelConfig(path="/somewhere/base", dtype="bfloat16", attention="auto")
    expected = {"device": device_name(CPU), "dtype": "bfloat16", "attention": "sdpa"}
    expected |= {"quantization": "none", "compile": False, "batch_size": 8}
    expected["packages"] = {name: version(name) for name in ("dopsd", "torch", "transformers")}
    expected["packages"]["peft"] = version("peft")
    found = backends.measured_on(model, 8, CPU)
    assert found | expected == found
    assert "thread" not in found["device"] and "/somewhere" not in json.dumps(found)


def test_packages_that_compute_only_with_a_setting_are_named_with_it(monkeypatch):
    monkeypatch.setattr(backends, "package_version", lambda name: f"1 of {name}")
    fused = ModelConfig(dtype="bfloat16", attention="flash_attention_2", kernels="liger")
    plain = backends.measured_on(ModelConfig(), 8, CPU)["packages"]
    optional = backends.measured_on(fused, 8, CPU)["packages"].items() - plain.items()
    assert optional == {(n, f"1 of {n}") for n in ("flash-attn", "liger-kernel")}


def test_an_evaluation_that_continues_elsewhere_names_both_devices(project, monkeypatch):
    on(monkeypatch, "NVIDIA H200")
    work, protocol = evaluator()
    ((whole,),) = work.reports("evaluate", [None], protocol)
    assert [record["device"] for record in whole["measured_on"]] == ["NVIDIA H200"]
    path = next(work.answering(None, protocol).folder.glob("answers.*"))
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:7]))
    work.cached(None, protocol).unlink()
    on(monkeypatch, "NVIDIA A100")
    ((both,),) = evaluator()[0].reports("evaluate", [None], protocol)
    assert [record["device"] for record in both["measured_on"]] == ["NVIDIA A100", "NVIDIA H200"]
    assert both | {"measured_on": []} == whole | {"measured_on": []}


def test_a_score_from_the_cache_keeps_its_device_and_is_shown_as_such(project, monkeypatch, capsys):
    on(monkeypatch, "NVIDIA H200")
    work, protocol = evaluator()
    before = work.reports("evaluate", [None], protocol)
    assert "earlier evaluation" not in capsys.readouterr().err
    path = work.cached(None, protocol)
    on(monkeypatch, "NVIDIA A100")
    again, _ = evaluator()
    assert again.cached(None, protocol) == path
    assert again.reports("evaluate", [None], protocol) == before
    said = capsys.readouterr().err
    assert "evaluate: 1 of 1 scores are of an earlier evaluation, measured on NVIDIA H200" in said
    assert "here is NVIDIA A100" in said


def test_rows_that_did_not_fit_a_gpu_are_the_batch_size(project):
    work, protocol = evaluator()
    work.with_adapter(None).rows_that_fit[protocol.gen_length] = 2
    ((found,),) = work.reports("evaluate", [None], protocol)
    assert [record["batch_size"] for record in found["measured_on"]] == [2]


def test_every_file_of_scores_says_what_measured_them(finished):
    run = Path("runs/sudoku/d_opsd/0")
    read = lambda path: json.loads(path.read_text())  # noqa: E731
    tested = read(run / "test/paired.json")["protocols"]["greedy"]
    summary = read(Path("reports/sudoku/d_opsd/0/summary.json"))
    scores = [tested["base"], tested["best"], summary["base"], summary["best"]]
    scores += [read(Path("runs/sudoku/base.json"))["greedy"], read(run / "evaluate.json")]
    scores.append(read(run / "test.json")["greedy"])
    for score in scores:
        (record,) = score["measured_on"]
        assert record["device"] == device_name(CPU) and record["attention"] == "sdpa"
