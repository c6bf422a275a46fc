"""The pretended GPU itself: what it refuses and counts."""

from __future__ import annotations

import pytest

from gpu import runs

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def found() -> dict:
    return runs.checked()


def test_tensors_of_two_devices_do_not_mix(found):
    mixed = found["mixed"]
    assert "same device" in mixed["sum"] and "same device" in mixed["host indexed by device"]
    assert mixed["scalar"] == "" and mixed["numpy"].startswith("TypeError")


def test_each_wait_of_the_host_is_counted_and_nothing_else(found):
    assert found["waits"] == {
        "sum": 0,
        "item": 1,
        "bool": 1,
        "tolist": 1,
        "upload": 1,
        "asynchronous upload": 0,
        "mask": 1,
        "fill by mask": 0,
        "assign by mask": 0,
        "index by a list": 1,
        "nonzero": 1,
        "full": 0,
    }


def test_memory_lives_as_long_as_the_last_view(found):
    assert found["held"] == [1024, 1024, 1024, 0]
    assert found["large"] == {"is_unknown": True, "bytes": 4 * 512 * 512, "shape": [512, 512]}
    assert found["out_of_memory"].startswith("OutOfMemoryError")


def test_small_values_and_their_gradients_are_true(found):
    assert found["gradients"] == [6.0, 16.0]


def test_doctor_checks_the_card(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    printed = " ".join(runs.output(runs.start("run", "doctor"), 1).split())  # no params.yaml here
    assert "ok gpu speed" in printed and "TFLOP/s in bfloat16" in printed
    assert "ok gpu computes" in printed and "ok fused kernels" in printed
