"""Create and save figures without a screen; the same data give the same bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

PNG: dict[str, Any] = {"dpi": 110, "bbox_inches": "tight", "metadata": {"Software": None}}


def axes_of(rows: int, columns: int, size: tuple[float, float]) -> tuple[Figure, Any]:
    """Return a figure and its axes [rows, columns].

    Args:
        rows: rows of axes.
        columns: columns of axes.
        size: width and height in inches.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot.subplots(rows, columns, figsize=size, squeeze=False)


def save_figure(figure: Figure, path: Path) -> None:
    """Save a figure as PNG without metadata, and close it."""
    from matplotlib import pyplot

    figure.savefig(path, **PNG)
    pyplot.close(figure)
