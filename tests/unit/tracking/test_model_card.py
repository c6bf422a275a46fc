"""The card of a registered checkpoint, and the hours of devices that a run cost, by hand."""

import json
import shutil
from pathlib import Path

import pytest
from cells import finished
from conftest import write_params

from dopsd.config.loading import load_params
from dopsd.core.files import read_json, write_json
from dopsd.core.paths import RunKey
from dopsd.tracking.log_uploader import mlflow_identity
from dopsd.tracking.model_card import CardOrigin, card, description
from dopsd.tracking.publish_run import device_hours, run_cost

PAIRED = Path("runs/sudoku/d_opsd/0/test/paired.json")


def card_of(**paired: object) -> str:
    """The card of the finished run, with another paired difference on test."""
    tested = json.loads(PAIRED.read_text())
    tested["protocols"]["greedy"]["paired"] |= paired
    PAIRED.write_text(json.dumps(tested))
    params = load_params()
    data = {"train": "11ff", "validation": "22ff", "test": "33ff"}
    origin = CardOrigin(data, "c0ffee", "models:/m-1")
    return card(params.run("sudoku", "d_opsd", 0), params.evaluate, origin)


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [
        ([0.01, 0.2], "better than the base on such problems"),
        ([-0.2, -0.01], "worse than the base on such problems"),
        ([-0.01, 0.2], "these problems show no difference to the base"),
    ],
)
def test_the_interval_decides_what_the_card_says(finished, interval, verdict):
    text = card_of(difference=0.1234, interval=interval)
    assert f"differs by +12.3 percentage points, between {100 * interval[0]:+.1f}" in text
    assert f"{verdict}." in text


def test_a_card_has_all_parts(finished):
    text = card_of()
    titles = [line[3:] for line in text.splitlines() if line.startswith("## ")]
    assert titles == ["Result", "How to use it", "Data", "Training", "Limits", "All settings"]
    assert "accuracy on 12 test problems**" in text
    assert "mlflow artifacts download -u models:/m-1 -d adapter" in text
    # the files of the toy project have so many problems
    rows = len(Path("data/sudoku/validation.jsonl").read_text().splitlines())
    assert f"* validation: {rows} problems, for validation and selection; DVC md5 `22ff`" in text
    assert "None" not in text and "{" not in text.partition("## All settings")[0]


def test_the_description_of_a_registered_model_names_the_champion():
    text = description("dopsd-sudoku", "sudoku", "base/sudoku")
    assert "trained on the task `sudoku` (4x4 Sudoku: fill in" in text
    assert "models:/dopsd-sudoku@champion" in text


def test_a_run_that_is_another_method_by_its_settings_says_so(finished):
    shutil.copytree("runs/sudoku/d_opsd", "runs/sudoku/espo")
    write_params(method__espo__objective="squared", method__espo__clip_range=4e-4)
    params = load_params()
    run = params.run("sudoku", "espo", 0)
    text = card(run, params.evaluate, CardOrigin({}, None, "models:/m-1"))
    assert "# sudoku, espo (GDSD), seed 0" in text and "by `espo (GDSD)` (GDSD: the change" in text
    assert "* method: `espo (GDSD)`, GDSD: the change of" in text
    tags = mlflow_identity(run, params.tracking).tags
    assert tags["method"] == "espo" and tags["variant"] == "GDSD"
    assert "variant" not in mlflow_identity(params.run("sudoku", "rft", 0), params.tracking).tags


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
