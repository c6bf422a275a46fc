"""Create and save figures without a screen; the same data give the same bytes.

Figures are WIDTH inches wide, so that their text is legible at the width of a README, 830 pixels.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from dopsd.core.palette import NEUTRAL, PALETTE, run_colour
from dopsd.core.registry import Registry

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 8.0  # inches
PNG: dict[str, Any] = {"dpi": 144, "bbox_inches": "tight", "metadata": {"Software": None}}
GRID = "#e4e4e4"


def axes_of(rows: int, columns: int, height: float, share_x: bool = False) -> tuple[Figure, Any]:
    """Return a figure of WIDTH and its axes [rows, columns].

    Args:
        share_x: all axes have the same range of x, and only the lowest ones its numbers.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        rows,
        columns,
        figsize=(WIDTH, height),
        squeeze=False,
        sharex=share_x,
        layout="constrained",
    )
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_axisbelow(True)
        axis.grid(color=GRID, lw=0.6)
    return figure, axes


def percent_axis(axis: Axes) -> None:
    """Write the shares on the y axis in percent."""
    axis.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g}%")


def legend_below(figure: Figure, axes: Iterable[Axes], columns: int) -> None:
    """Put one legend for all axes below the figure."""
    by_label = {
        label: handle
        for axis in axes
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        by_label.values(),
        by_label.keys(),
        loc="outside lower center",
        ncols=max(1, min(columns, len(by_label))),
        frameon=False,
    )


def save_figure(figure: Figure, path: Path) -> None:
    """Save a figure as PNG without metadata, and close it."""
    from matplotlib import pyplot

    figure.savefig(path, **PNG)
    pyplot.close(figure)


GROUPS = 10  # points of a block's curve
WINDOW = 12  # updates of a moving mean
DASHES = ("-", "--", ":", "-.")  # protocols
LABELS = {  # plain names of metrics, in the order of the figure; docs/metrics.md defines them
    "loss": "training loss",
    "grad_norm": "gradient norm before clipping",
    "first_attempt_score": "score of first attempts",
    "rolling_score": "score of first attempts, moving mean",
    "completion_length": "length of first attempts (tokens)",
    "overlap_top20": "overlap of the 20 likeliest tokens",
    "shared_mass": "probability that student and teacher share",
    "clip_ratio": "terms that are clipped",
    "student_entropy": "entropy of the student (nats)",
    "teacher_entropy": "entropy of the teacher (nats)",
}
SHARES = ("first_attempt_score", "rolling_score", "overlap_top20", "shared_mass", "clip_ratio")
AGREEMENT = ("overlap_top20", "shared_mass")  # drawn by block
# Not ALGORITHMS: with that import a change of any algorithm would make figures stale.
METHODS = Registry("dopsd.algorithms", "algorithm")


def draw_accuracy(
    curve: list[dict[str, Any]], tested: dict[str, Any], title: str, start: str, path: Path
) -> None:
    """Draw accuracy over updates with 95% bands, one line for each protocol.

    Args:
        curve: rows of curve.csv.
        tested: content of test/paired.json, which names the selected checkpoint.
        start: folder of the checkpoint that the run started from; empty: the base.
    """
    figure, axes = axes_of(1, 1, WIDTH * 0.5)
    axis: Axes = axes[0][0]
    colour, chosen = run_colour(METHODS, tested["method"]), tested["selected"]
    for index, name in enumerate(dict.fromkeys(row["protocol"] for row in curve)):
        rows = [row for row in curve if row["protocol"] == name]
        updates, accuracies, lows, highs = (
            [row[key] for row in rows] for key in ("update", "accuracy", "low", "high")
        )
        dash, label = DASHES[index % len(DASHES)], f"{name}, {rows[0]['n']} problems"
        axis.plot(updates, accuracies, dash, marker="o", color=colour, label=label)
        axis.fill_between(
            updates, lows, highs, alpha=0.15, lw=0, color=colour, label="95% interval"
        )
    ring: dict[str, Any] = {
        "ms": 14,
        "mfc": "none",
        "mew": 1.5,
        "color": "black",
        "label": "selected checkpoint",
    }
    axis.plot(chosen["update"], chosen["accuracy"], "o", **ring)
    axis.axhline(chosen["base_accuracy"], ls="--", lw=1, color=NEUTRAL, label="base model")
    axis.set(
        xlabel=f"update ({beginning(curve, start)})" if start else "update",
        ylabel=f"accuracy on {chosen['split']}",
        title=title,
    )
    percent_axis(axis)
    axis.legend(frameon=False)
    save_figure(figure, path)


def draw_speed(tested: dict[str, Any], title: str, path: Path) -> None:
    """Draw accuracy on test over denoising steps, of base and best checkpoint, with 95% intervals.

    Protocols with a threshold are drawn as points of their own.

    Args:
        tested: content of test/paired.json, with the points of `evaluate.curve`.
    """
    figure, axes = axes_of(1, 1, WIDTH * 0.5)
    axis: Axes = axes[0][0]
    name, reports = tested["selected"]["protocol"], tested["protocols"]
    colours = {"base": NEUTRAL, "best": run_colour(METHODS, tested["method"])}
    for side, colour in colours.items():
        for part, style in (("steps", "o-"), ("threshold", "^")):
            names = [n for n in reports if n.startswith(f"{name}-{part}")]
            names += [name] if part == "steps" else []
            points = sorted(
                (r["steps"], r["accuracy"], *r["interval"])
                for r in (reports[n][side] for n in names)
            )
            if points:
                steps, accuracies, lows, highs = zip(*points, strict=True)
                label = f"{'trained' if side == 'best' else 'base'}, by {part}"
                gaps = [
                    [y - low for y, low in zip(accuracies, lows, strict=True)],
                    [high - y for y, high in zip(accuracies, highs, strict=True)],
                ]
                axis.errorbar(steps, accuracies, gaps, fmt=style, color=colour, label=label)
    axis.set(xlabel="denoising steps of an answer, mean", ylabel="accuracy on test", title=title)
    axis.set_xlim(left=0)
    percent_axis(axis)
    axis.legend(frameon=False)
    save_figure(figure, path)


def beginning(curve: list[dict[str, Any]], start: str) -> str:
    """Return where the curve of a run that started from a checkpoint begins."""
    is_known = any(row["update"] == 0 for row in curve)
    return f"0: {start}" if is_known else f"training began at {start}, not evaluated"


def draw_training(log: list[dict[str, float]], title: str, path: Path) -> None:
    """Draw loss, agreement with the teacher and signs of collapse (paper, Fig. 4) over updates."""
    names = [name for name in LABELS if any(row.get(name) for row in log)]
    rows_of_axes = -(-len(names) // 2)
    figure, axes = axes_of(rows_of_axes, 2, 0.5 + 1.6 * rows_of_axes, share_x=True)
    for axis in axes.flat[len(names) :]:
        axis.set_axis_off()
    for axis, name in zip(axes.flat, names, strict=False):
        _draw_metric(axis, [(row["update"], row[name]) for row in log if name in row])
        _describe(axis, name)
    figure.suptitle(title, fontsize=11)
    figure.supxlabel(f"update (thin: each one, thick: mean of the last {WINDOW})", fontsize=10)
    save_figure(figure, path)


def _draw_metric(axis: Axes, points: Sequence[tuple[float, float]]) -> None:
    updates, values = zip(*points, strict=True)
    axis.plot(updates, values, lw=0.7, alpha=0.5, color=PALETTE[0])
    axis.plot(updates, trailing_means(points), lw=1.8, color=PALETTE[0])


def trailing_means(points: Sequence[tuple[float, float]]) -> list[float]:
    """Return at each point the mean over the last WINDOW updates.

    Metrics of a collect have a point only at the update that follows it.
    """
    return [
        fmean(value for update, value in points[: i + 1] if update > last - WINDOW)
        for i, (last, _) in enumerate(points)
    ]


def _describe(axis: Axes, metric: str) -> None:
    """Write the plain name of a metric, and shares in percent."""
    axis.set_title(LABELS[metric], loc="left", fontsize=10)
    if metric in SHARES:
        percent_axis(axis)


def draw_overlap(log: list[dict[str, float]], title: str, path: Path) -> None:
    """Draw how student and teacher agree, by block: top 20 tokens (paper, Fig. 3) and probability.

    Writes no file for methods without a teacher.
    """
    blocks = blocks_of(log)
    if not blocks:
        return
    from matplotlib import colormaps

    figure, axes = axes_of(1, 2, WIDTH * 0.45)
    for axis, name in zip(axes[0], AGREEMENT, strict=True):
        for index, block in enumerate(blocks):
            key = f"block_{block}/{name}"
            points = grouped([(row["update"], row[key]) for row in log if key in row])
            colour = colormaps["viridis"](0.85 * index / max(1, len(blocks) - 1))
            axis.plot(
                *zip(*points, strict=True),
                marker="o",
                ms=3,
                color=colour,
                label=f"block {block + 1}",
            )
        _describe(axis, name)
        axis.set(xlabel=f"update (means of {GROUPS} groups of updates)")
    figure.suptitle(title, fontsize=11)
    legend_below(figure, axes[0][:1], columns=8)
    save_figure(figure, path)


def blocks_of(log: list[dict[str, float]]) -> list[int]:
    """Return the numbers of the blocks that were trained on."""
    names = {name for row in log for name in row if name.endswith("/overlap_top20")}
    return sorted(int(name.split("_")[1].split("/")[0]) for name in names)


def grouped(rows: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the means of up to GROUPS groups of consecutive rows."""
    size = -(-len(rows) // GROUPS)
    groups = [rows[i : i + size] for i in range(0, len(rows), size)]
    return [
        (fmean(update for update, _ in group), fmean(value for _, value in group))
        for group in groups
    ]
