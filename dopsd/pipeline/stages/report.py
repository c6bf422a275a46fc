"""`dopsd report --task sudoku --method d_opsd --seed 0`: draw the figures of a run."""

from __future__ import annotations

from statistics import fmean as mean
from typing import TYPE_CHECKING, Any

from dopsd.analysis.figures import axes_of, save_figure
from dopsd.analysis.trajectory_figure import draw_trajectory
from dopsd.core.extras import require
from dopsd.core.files import fresh_folder, read_json, write_json
from dopsd.core.paths import report_folder, run_folder
from dopsd.core.tables import read_table

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

    from dopsd.config.params import Params

GROUPS = 10  # points per block curve
FIGURES: tuple[str, ...] = (
    "loss",
    "overlap_top20",
    "clip_ratio",
    "first_attempt_score",
    "rolling_score",
    "completion_length",
)
FIGURES += ("shared_mass", "student_entropy", "teacher_entropy", "grad_norm")


def run(params: Params, task_name: str, method_name: str, seed: int) -> None:
    """Write figures and summary.json to reports/<task>/<method>/<seed>/."""
    require("report", "matplotlib")
    folder, out = (
        run_folder(task_name, method_name, seed),
        report_folder(task_name, method_name, seed),
    )
    tested = read_json(folder / "test" / "paired.json", "dopsd test")
    with fresh_folder(out) as tmp:
        draw_accuracy(read_table(folder / "curve.csv"), tested, tmp / "accuracy.png")
        draw_training(read_table(folder / "train.csv"), tmp / "training.png")
        draw_overlap(read_table(folder / "train.csv"), tmp / "overlap.png")
        draw_trajectory(
            read_json(folder / "test" / "trajectory.json", "dopsd test"), tmp / "trajectory.png"
        )
        comparison = tested["protocols"][tested["selected"]["protocol"]]
        costs = read_json(folder / "train.json", "dopsd train")
        write_json(
            tmp / "summary.json",
            {"costs": costs, "selected": tested["selected"]["update"], **_figures(comparison)},
        )


def _figures(comparison: dict[str, Any]) -> dict[str, Any]:
    sides = {
        side: {k: comparison[side][k] for k in ("accuracy", "interval", "whole", "n")}
        for side in ("base", "best")
    }
    return sides | {"paired": comparison["paired"]}


def draw_accuracy(curve: list[dict[str, Any]], tested: dict[str, Any], path: Path) -> None:
    """Draw accuracy over updates with 95% bands, one line per protocol.

    Args:
        curve: Rows of curve.csv.
        tested: Content of test/paired.json, which names the selected checkpoint.
        path: File to write.
    """
    figure, axes = axes_of(1, 1, (7, 4))
    axis: Axes = axes[0][0]
    for name in dict.fromkeys(row["protocol"] for row in curve):
        rows = [row for row in curve if row["protocol"] == name]
        updates = [row["update"] for row in rows]
        axis.plot(
            updates,
            [row["accuracy"] for row in rows],
            marker="o",
            label=f"{name}, n = {rows[0]['n']}",
        )
        axis.fill_between(
            updates, [row["low"] for row in rows], [row["high"] for row in rows], alpha=0.2
        )
    chosen = tested["selected"]
    axis.plot(
        chosen["update"],
        chosen["accuracy"],
        "o",
        ms=14,
        mfc="none",
        color="black",
        label="selected",
    )
    axis.axhline(chosen["base_accuracy"], ls="--", lw=1, color="grey", label="base")
    axis.set(
        xlabel="update",
        ylabel=f"{chosen['split']} accuracy",
        title=f"{tested['method']} on {tested['task']}, seed {tested['seed']}",
    )
    axis.legend()
    save_figure(figure, path)


def draw_training(log: list[dict[str, float]], path: Path) -> None:
    """Draw loss, agreement with the teacher and signs of collapse (paper, Fig. 4) over updates.

    Args:
        log: Rows of train.csv; metrics that a method does not have are left out.
        path: File to write.
    """
    names = [name for name in FIGURES if any(row.get(name) for row in log)]
    rows_of_axes = -(-len(names) // 2)
    figure, axes = axes_of(rows_of_axes, 2, (13, 2.1 * rows_of_axes))
    for axis in axes.flat[len(names) :]:
        axis.set_axis_off()
    for axis, name in zip(axes.flat, names, strict=False):
        rows = [(row["update"], row[name]) for row in log if name in row]
        updates, values = zip(*rows, strict=True)
        means = [
            sum(values[max(0, i - 11) : i + 1]) / len(values[max(0, i - 11) : i + 1])
            for i in range(len(values))
        ]
        axis.plot(updates, values, lw=0.6, alpha=0.5, color="tab:blue")
        axis.plot(updates, means, lw=1.8, color="tab:blue")
        axis.set_ylabel(name)
    figure.supxlabel("update (thin: each, thick: mean of the last twelve)", y=0.07, fontsize=9)
    save_figure(figure, path)


def draw_overlap(log: list[dict[str, float]], path: Path) -> None:
    """Draw how student and teacher agree, by block: top 20 tokens (paper, Fig. 3) and probability.

    Writes no file for methods without a teacher.

    Args:
        log: Rows of train.csv.
        path: File to write.
    """
    blocks = sorted(
        {
            int(name.split("_")[1].split("/")[0])
            for row in log
            for name in row
            if name.endswith("/overlap_top20")
        }
    )
    if not blocks:
        return
    figure, axes = axes_of(1, 2, (12, 4))
    labels = {
        "overlap_top20": "overlap of the top 20",
        "shared_mass": "probability on the same tokens",
    }
    for axis, (name, label) in zip(axes[0], labels.items(), strict=True):
        for block in blocks:
            points = _grouped(
                [
                    (row["update"], row[f"block_{block}/{name}"])
                    for row in log
                    if f"block_{block}/{name}" in row
                ]
            )
            axis.plot(*zip(*points, strict=True), marker="o", ms=3, label=f"block {block + 1}")
        axis.set(xlabel=f"update (a block's updates in {GROUPS} groups, their means)", ylabel=label)
    axes[0][0].legend()
    save_figure(figure, path)


def _grouped(rows: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the means of GROUPS groups of consecutive rows."""
    size = -(-len(rows) // GROUPS)
    groups = [rows[i : i + size] for i in range(0, len(rows), size)]
    return [
        (mean(update for update, _ in group), mean(value for _, value in group)) for group in groups
    ]
