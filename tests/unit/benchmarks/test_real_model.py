"""benchmarks/gpu: the run of the small real model survives what it meets."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
from autoregressive_toys import autoregressive, write_gguf
from conftest import ROOT

from dopsd.core.interrupts import handling

GPU = ROOT / "benchmarks/gpu"


def module(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(GPU)
    return __import__(name)


def test_a_row_of_gsm8k_is_taught_in_the_layout_that_the_prompt_asks_for(monkeypatch):
    row = {"question": " How many? ", "answer": "2 * 3 = <<2*3=6>>6\nSo 1,006.\n#### 1,006"}
    found = module("projects", monkeypatch).trace(**row)
    assert found["question"].endswith("</answer>\n\nHow many?")
    assert found["response"] == (
        "<reasoning>\n2 * 3 = 6\nSo 1,006.\n</reasoning>\n<answer>\n\\boxed{1006}\n</answer>"
    )


def test_stages_that_fail_or_no_longer_fit_leave_a_line(tmp_path: Path, monkeypatch):
    run = module("stages", monkeypatch).Stages(tmp_path, 100)

    def fails() -> None:
        raise ValueError("no such kernel")

    assert run.run("good", lambda: 0) == 0
    assert run.run("bad", fails) is None
    assert not run.command("usage", ["no-such-command"])
    assert run.run("late", lambda: 0, least=101) is None
    lines = [json.loads(line) for line in (tmp_path / "real_model.jsonl").read_text().splitlines()]
    assert [line["stage"] for line in lines] == ["good", "bad", "usage", "late"]
    assert lines[1]["error"] == "ValueError: no such kernel" and "error" in lines[2]
    assert "it needs 101" in lines[3]["skipped"] and list(run.took) == ["good"]


def test_the_time_of_a_training_waits_for_its_handler(monkeypatch):
    stages, caught = module("stages", monkeypatch), []
    monkeypatch.setattr(stages, "REPEAT", 0.05)
    early: list[int] = []  # of a handler of others, as coverage has one that ends the process
    with handling(lambda *_: early.append(1)):
        before = signal.getsignal(signal.SIGTERM)
        with stages.stopped_after(0.05):
            time.sleep(0.2)
            signal.signal(signal.SIGTERM, lambda *_: caught.append(1))
            time.sleep(0.2)
        time.sleep(0.1)
        assert caught and not early and signal.getsignal(signal.SIGTERM) == before


def test_the_model_travels_in_two_parts(tmp_path: Path, monkeypatch):
    pack = module("pack", monkeypatch)
    monkeypatch.setattr(pack, "GGUF", tmp_path / "model.gguf")
    monkeypatch.setattr(pack, "PARTS", [tmp_path / "model.1", tmp_path / "model.2"])
    monkeypatch.setattr(pack, "ROWS", tmp_path / "rows")
    content = os.urandom(1001)
    pack.GGUF.write_bytes(content)
    pack.split_model()
    assert not pack.GGUF.exists()  # --unpack makes it again
    pack.unpack()
    assert pack.GGUF.read_bytes() == content
    pack.GGUF.unlink()
    (tmp_path / "model.1/1.xz").unlink()
    with pytest.raises(SystemExit, match=r"only .*2.xz is here"):
        pack.unpack()


@pytest.mark.full
def test_every_stage_of_the_real_model_runs_on_a_toy(tmp_path: Path):
    write_gguf(tmp_path / "toy.gguf", autoregressive("llama", 261))
    out, words = tmp_path / "out", ["--toy", "--gguf", str(tmp_path / "toy.gguf")]
    words += ["--folder", str(tmp_path / "work"), "--out", str(out), "--seconds", "1000"]
    subprocess.run([sys.executable, GPU / "real_model.py", *words], check=True)
    last = (out / "real_model.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["missing"] == []
    files = {"adapt.jsonl", "d_opsd.jsonl", "real_model.jsonl", "curve.csv", "test.json"}
    files |= {"adapter_model.safetensors", "adapter_config.json"}
    assert {path.name for path in out.iterdir()} == files
