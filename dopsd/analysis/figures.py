"""Create and save figures without a screen; the same data give the same bytes.

Figures are WIDTH inches wide, so that their text is legible at the width of a README, 830 pixels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 8.0  # inches
PNG: dict[str, Any] = {"dpi": 144, "bbox_inches": "tight", "metadata": {"Software": None}}
GRID = "#e4e4e4"


def axes_of(
    rows: int, columns: int, height: float, share_x: bool = False, share_y: bool = False
) -> tuple[Figure, Any]:
    """Return a figure of WIDTH and its axes [rows, columns].

    Args:
        rows: rows of axes.
        columns: columns of axes.
        height: inches.
        share_x: all axes have the same range of x, and only the lowest ones its numbers.
        share_y: all axes have the same range of y, and only the first ones its numbers.
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
        sharey=share_y,
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
    """Put one legend for all axes below the figure.

    Args:
        figure: the figure.
        axes: the axes whose labels the legend names, each label once.
        columns: largest number of labels in a line.
    """
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
