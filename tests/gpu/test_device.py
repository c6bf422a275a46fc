"""The pretended GPU itself: what it refuses and counts."""

from __future__ import annotations

import pytest

from gpu import runs

pytestmark = pytest.mark.full


def test_the_device_refuses_counts_and_computes_as_a_card():
    found = runs.checked()
    mixed = found["mixed"]
    assert "same device" in mixed["sum"] and "same device" in mixed["host indexed by device"]
    assert mixed["scalar"] == "" and mixed["numpy"].startswith("TypeError")
    counts = found["waits"]
    once = ["item", "bool", "tolist", "upload", "mask", "index by a list", "nonzero"]
    never = ["sum", "asynchronous upload", "fill by mask", "assign by mask", "full"]
    assert counts == dict.fromkeys(once, 1) | dict.fromkeys(never, 0)
    assert found["held"] == [1024, 1024, 1024, 0]  # until the last view ends
    assert found["out_of_memory"].startswith("OutOfMemoryError")
    assert found["gradients"] == [6.0, 16.0]


def test_doctor_checks_the_card(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    printed = " ".join(runs.output(runs.start("run", "doctor"), 1).split())  # no params.yaml here
    assert "ok gpu speed" in printed and "TFLOP/s in bfloat16" in printed
    assert "ok gpu computes" in printed and "ok fused kernels" in printed
