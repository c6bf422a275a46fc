"""Hours of devices by hand: several GPUs, another machine after an interruption, no record."""

from __future__ import annotations

from pathlib import Path

import pytest
from cells import finished

from dopsd.core.files import read_json, write_json
from dopsd.core.paths import RunKey
from dopsd.tracking.publish_run import device_hours, run_cost

CPU, GPU = "Some Processor (CPU, 2 threads)", "NVIDIA H100 80GB HBM3"


def row(update: int, wall: float, cpu: float = 0.0) -> dict[str, float]:
    return {"update": update, "time/update_seconds": wall, "time/cpu_seconds": cpu}


def part(after_update: int, *devices: str) -> dict[str, object]:
    return {"after_update": after_update, "devices": list(devices)}


def test_gpu_hours_count_every_gpu_for_the_time_of_its_updates():
    rows = [row(1, 1800.0), row(2, 900.0)]
    assert device_hours(rows, [part(0, GPU, GPU)]) == {"cost/gpu_hours": 1.5}


def test_a_run_that_goes_on_with_other_devices_sums_all_segments():
    rows = [row(1, 3600.0), row(2, 3600.0), row(3, 3600.0), row(4, 7.0, cpu=1800.0)]
    parts = [part(0, GPU), part(1, GPU, GPU, GPU, GPU), part(3, CPU, CPU)]
    assert device_hours(rows, parts) == {"cost/gpu_hours": 9.0, "cost/cpu_hours": 1.0}


def test_without_a_record_of_devices_or_a_log_no_hours_are_claimed():
    assert device_hours([row(1, 5.0)], []) == {}
    assert device_hours([], [part(0, GPU)]) == {}


def test_the_cost_of_a_run_is_that_of_all_updates(here: Path):
    finished("d_opsd", 0, {"a": 1.0}, seconds=[36.0, 72.0])
    key = RunKey("sudoku", "d_opsd", 0)
    made = read_json(key.folder / "train.json", "")
    counts = {"trajectories": 4, "rollouts": 8, "sampled_tokens": 320}
    write_json(key.folder / "train.json", made | counts)
    write_json(Path("work/train-d_opsd0/machine.json"), {"parts": [part(0, *[GPU] * 100)]})
    assert run_cost(key) == {f"cost/{name}": value for name, value in counts.items()} | {
        "cost/gpu_hours": pytest.approx(3.0)
    }
