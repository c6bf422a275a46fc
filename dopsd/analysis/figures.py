"""Figures: a grid of axes without a screen, saved so that the same data give the same bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

PNG: dict[str, Any] = {"dpi": 110, "bbox_inches": "tight", "metadata": {"Software": None}}


def axes_of(rows: int, columns: int, size: tuple[float, float]) -> tuple[Figure, Any]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot.subplots(rows, columns, figsize=size, squeeze=False)


def save_figure(figure: Figure, path: Path) -> None:
    from matplotlib import pyplot

    figure.savefig(path, **PNG)
    pyplot.close(figure)
