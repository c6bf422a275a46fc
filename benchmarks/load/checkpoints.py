"""Train, evaluate and publish one run with many checkpoints, each twice as many as before.

    python benchmarks/load/checkpoints.py [checkpoints ...]

A checkpoint after every update of the tests' toy base. Fails if a checkpoint, its accuracy or its
model in MLflow is missing or there twice.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path

from measured_command import ROOT, Measured, dopsd, say, table, toy_project

sys.path.insert(0, str(ROOT))

SIZES = (125, 250, 500, 1000)
CELL = Path("runs/sudoku/d_opsd/0")


def check_files(folder: Path, size: int) -> None:
    """Check that every checkpoint is there, and on the curve once."""
    from dopsd.core.tables import read_table

    expected = list(range(1, size + 1))
    folders = sorted(int(path.name[5:]) for path in (folder / CELL / "train").iterdir())
    curve = [row["update"] for row in read_table(folder / CELL / "curve.csv")]
    assert folders == expected, f"{len(folders)} checkpoints of {size}"
    assert curve == [0, *expected], f"{len(curve) - 1} accuracies of {size}"


def check_mlflow(folder: Path, size: int) -> None:
    """Check that MLflow has each checkpoint as one model, and each accuracy and loss once."""
    from dopsd.tracking.client import connect

    client = connect(f"sqlite:///{folder / 'mlflow.db'}")
    experiment = client.search_experiments(filter_string="name = 'dopsd'")[0].experiment_id
    models, token = Counter(), None
    while True:
        page = client.search_logged_models([experiment], max_results=50, page_token=token)
        models.update(int(model.tags["update"]) for model in page)
        token = page.token
        if not token:
            break
    assert models == Counter(range(1, size + 1)), f"{models.total()} models of {size}"
    (found,) = client.search_runs([experiment])
    for name, first in (("eval/accuracy", 0), ("train/loss", 1)):
        points = [point.step for point in client.get_metric_history(found.info.run_id, name)]
        assert sorted(points) == list(range(first, size + 1)), f"{name}: {len(points)} of {size}"


def measure(folder: Path, size: int) -> list[Measured]:
    """Return what each command takes with `size` checkpoints."""
    toy_project(folder, train__updates=size, train__checkpoint_every=1, tracking__enabled=True)
    local = {"MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}"}
    # the log goes to MLflow by publish: the uploader's time would count for nobody
    rows = [dopsd(folder, size, "train", env={"MLFLOW_TRACKING_URI": "http://127.0.0.1:9"})]
    rows += [dopsd(folder, size, "train", name="train again")]
    rows += [dopsd(folder, size, name) for name in ("evaluate_base", "evaluate")]
    rows += [dopsd(folder, size, "evaluate", name="evaluate again")]
    rows += [dopsd(folder, size, name) for name in ("select", "test", "report")]
    check_files(folder, size)
    rows += [dopsd(folder, size, "publish", env=local)]
    check_mlflow(folder, size)
    rows += [dopsd(folder, size, "publish", name="publish again", env=local)]
    check_mlflow(folder, size)
    return rows + [dopsd(folder, size, name, env=local) for name in ("summary", "compare", "clean")]


def main() -> None:
    sizes = tuple(map(int, sys.argv[1:])) or SIZES
    with tempfile.TemporaryDirectory() as folder:
        rows = [row for size in sizes for row in measure(Path(folder) / str(size), size)]
    say(f"\nNothing lost: {', '.join(map(str, sizes))} checkpoints.\n\n{table(rows)}")


if __name__ == "__main__":
    main()
