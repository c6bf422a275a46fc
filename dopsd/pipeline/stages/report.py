"""`dopsd report --task sudoku --method d_opsd --seed 0`: draw the figures of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dopsd.analysis.figures import draw_accuracy, draw_overlap, draw_speed, draw_training
from dopsd.analysis.trajectory_figure import draw_trajectory
from dopsd.core.extras import require
from dopsd.core.files import fresh_folder, read_json, write_json
from dopsd.core.paths import report_folder, run_folder
from dopsd.core.tables import read_table
from dopsd.evaluation.curve import curve_of, start_of_curve

if TYPE_CHECKING:
    from dopsd.config.params import Params


def run(params: Params, task_name: str, method_name: str, seed: int) -> None:
    """Write figures and summary.json to reports/<task>/<method>/<seed>/."""
    require("report", "matplotlib")
    folder, out = (
        run_folder(task_name, method_name, seed),
        report_folder(task_name, method_name, seed),
    )
    tested = read_json(folder / "test" / "paired.json", "dopsd test")
    name = params.name_of(method_name)
    log, title = read_table(folder / "train.csv"), f"{name} on {task_name}, seed {seed}"
    start = start_of_curve(folder)
    with fresh_folder(out) as tmp:
        draw_accuracy(curve_of(folder), tested, title, start, tmp / "accuracy.png")
        draw_training(log, title, tmp / "training.png")
        if "area" in tested:
            draw_speed(tested, title, tmp / "speed.png")
        draw_overlap(log, title, tmp / "overlap.png")
        draw_trajectory(
            read_json(folder / "test" / "trajectory.json", "dopsd test"), tmp / "trajectory.png"
        )
        comparison = tested["protocols"][tested["selected"]["protocol"]]
        costs = read_json(folder / "train.json", "dopsd train")
        write_json(
            tmp / "summary.json",
            {"costs": costs, "selected": tested["selected"]["update"], **_figures(comparison)}
            | ({"area": tested["area"]} if "area" in tested else {}),
        )


def _figures(comparison: dict[str, Any]) -> dict[str, Any]:
    sides = {
        side: {
            k: comparison[side][k] for k in ("accuracy", "interval", "whole", "n", "measured_on")
        }
        for side in ("base", "best")
    }
    return sides | {"paired": comparison["paired"]}
