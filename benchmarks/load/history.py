"""Commands on results in a project with a long history of finished runs.

    python benchmarks/load/history.py [runs ...]

One run of the tests' toy base is trained, evaluated and tested (two updates), and copied for the
other seeds. Fails if a run is missing, or there twice, in MLflow or in a table.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import yaml
from measured_command import ROOT, Measured, dopsd, measure, say, table, toy_project

sys.path.insert(0, str(ROOT))
SIZES = (125, 250, 500)
AWAY = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}  # no server: publish sends all
STAGES = ("evaluate_base", "train", "evaluate", "select", "test")
# as a run of that seed leaves it: train.json names settings and seed by their fingerprint
COPY = """
import json, shutil, sys
from pathlib import Path
from dopsd.config.loading import load_params
from dopsd.training.run_identity import identify
params, first = load_params(), Path("runs/sudoku/d_opsd/0")
for seed in range(*map(int, sys.argv[1:])):
    folder = first.with_name(str(seed))
    shutil.copytree(first, folder)
    made = json.loads((first / "train.json").read_text())
    made["fingerprint"] = identify(params.run("sudoku", "d_opsd", seed)).folder.name
    (folder / "train.json").write_text(json.dumps(made))
"""


def write_seeds(folder: Path, seeds: int) -> None:
    """Make the matrix of a project this many seeds."""
    raw = yaml.safe_load((folder / "params.yaml").read_text())
    raw["matrix"]["seeds"] = list(range(seeds))
    (folder / "params.yaml").write_text(yaml.safe_dump(raw))


def check(folder: Path, size: int) -> None:
    """Check that MLflow has every run once, with its accuracy, and the comparison every run."""
    from dopsd.tracking.client import connect

    client = connect(f"sqlite:///{folder / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("dopsd").experiment_id
    seeds, token = [], None
    while True:
        page = client.search_runs([experiment], max_results=100, page_token=token)
        seeds += [int(r.data.tags["seed"]) for r in page if "best/test_accuracy" in r.data.metrics]
        token = page.token
        if not token:
            break
    assert sorted(seeds) == list(range(size)), f"MLflow: {len(seeds)} runs of {size}"
    rows = json.loads((folder / "reports/compare/comparison.json").read_text())["runs"]
    named = [row["run"] for row in rows]
    expected = [f"sudoku/d_opsd/{seed}" for seed in range(size)]
    assert named == expected, f"compare: {len(named)} of {size}"


def measured(folder: Path, before: int, size: int) -> list[Measured]:
    """Return what each command takes once the project has `size` finished runs."""
    write_seeds(folder, size)
    copy = [sys.executable, "-c", COPY, str(max(before, 1)), str(size)]
    measure(folder, size, copy, "(copy the run)")
    local = {"MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}"}
    rows = [dopsd(folder, size, "publish", env=local)]
    rows += [dopsd(folder, size, "publish", name="publish again", env=local)]
    # the log of one more run: what each training start and end asks of MLflow
    one = ("--task", "sudoku", "--method", "d_opsd", "--seed", "0")
    rows += [dopsd(folder, size, "follow", *one, env=local)]
    rows += [dopsd(folder, size, "summary", env=local)]
    rows += [dopsd(folder, size, "summary", name="summary again", env=local)]
    rows += [dopsd(folder, size, name, env=local) for name in ("compare", "check", "clean")]
    check(folder, size)
    return rows


def main() -> None:
    sizes = tuple(map(int, sys.argv[1:])) or SIZES
    with tempfile.TemporaryDirectory() as place:
        folder = toy_project(Path(place) / "project", train__updates=2, tracking__enabled=True)
        for stage in STAGES:
            dopsd(folder, 1, stage, env=AWAY)
        rows = [
            row
            for before, size in zip((0, *sizes), sizes, strict=False)
            for row in measured(folder, before, size)
        ]
    say(f"\nNothing lost: {', '.join(map(str, sizes))} runs.\n\n{table(rows)}")


if __name__ == "__main__":
    main()
