"""Draw a denoising trajectory: student and teacher states at each step (paper, Fig. 2)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dopsd.analysis.figures import axes_of, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {
    "lightgrey": "mask",
    "palegreen": "mask that this step fills in",
    "white": "filled in by an earlier step",
    "orange": "mask in whose place the teacher sees the later token",
}
LEGIBLE = 64  # most tokens of an answer whose text still fits the cells
CELL, TALLEST = 0.155, 4.0  # inches: height of a row with text, and of the axes without


def draw_trajectory(trajectory: dict[str, Any], path: Path) -> None:
    """Draw the student's and the teacher's states one above the other, one row for each step.

    COLOURS has the meaning of the cells. Tokens are written into the cells of answers of up to
    LEGIBLE tokens.

    Args:
        trajectory: contents of trajectory.json, as `dopsd test` writes it.
    """
    from matplotlib.patches import Patch

    shown_by_step = trajectory["shown"]
    height = 2 * (0.5 + CELL * len(shown_by_step)) if _is_legible(trajectory) else 2 * TALLEST
    figure, axes = axes_of(2, 1, 0.8 + height, share_x=True)
    nothing: list[list[int]] = [[] for _ in shown_by_step]
    _draw_side(axes[0][0], trajectory, nothing, "What the student sees")
    _draw_side(axes[1][0], trajectory, shown_by_step, "What the teacher sees")
    verdict, question = trajectory["verdict"], " ".join(trajectory["problem"].split())
    figure.suptitle(
        _plain(
            f"Problem {question[:60]}, answer {str(verdict['answer'])[:24]}, score"
            f" {100 * verdict['score']:.0f}%"
        ),
        fontsize=11,
    )
    patches = [
        Patch(facecolor=colour, edgecolor="grey", label=label) for colour, label in COLOURS.items()
    ]
    figure.legend(handles=patches, loc="outside lower center", ncols=2, frameon=False)
    axes[1][0].set(xlabel="position in the answer, with lines between blocks")
    save_figure(figure, path)


def _is_legible(trajectory: dict[str, Any]) -> bool:
    return len(trajectory["tokens"]) <= LEGIBLE


def _draw_side(
    axis: Axes, trajectory: dict[str, Any], shown_by_step: list[list[int]], title: str
) -> None:
    """Draw the states of one model, to which these positions are shown at each step."""
    from matplotlib.colors import ListedColormap
    from matplotlib.ticker import MaxNLocator

    tokens, block_length = trajectory["tokens"], trajectory["block_length"]
    cells = [
        [
            _kind(revealed_step, step, position in shown_positions)
            for position, revealed_step in enumerate(trajectory["revealed_at"])
        ]
        for step, shown_positions in enumerate(map(set, shown_by_step))
    ]
    axis.imshow(
        cells,
        ListedColormap(list(COLOURS)),
        vmin=0,
        vmax=len(COLOURS) - 1,
        extent=(0, len(tokens), len(cells), 0),
        aspect="auto",
    )
    axis.set_title(title, loc="left", fontsize=10)
    axis.set(ylabel="denoising step")
    axis.grid(visible=False)
    axis.set_xticks(range(0, len(tokens) + 1, block_length))
    axis.yaxis.set_major_locator(MaxNLocator(integer=True))
    for edge in range(0, len(tokens) + 1, block_length):
        axis.axvline(edge, color="black", lw=0.8)
    if _is_legible(trajectory):
        _write_tokens(axis, cells, tokens)


def _kind(revealed_at: int, step: int, is_shown: bool) -> int:
    """Return a cell's index into COLOURS."""
    return 3 if is_shown else 1 if revealed_at == step else 0 if revealed_at > step else 2


def _write_tokens(axis: Axes, cells: list[list[int]], tokens: list[str]) -> None:
    axis.set_xticks(range(len(tokens) + 1), minor=True)
    axis.set_yticks(range(len(cells) + 1), minor=True)
    axis.grid(which="minor", color="white", lw=0.3)
    for step, row in enumerate(cells):
        for position, kind in enumerate(row):
            if kind:
                text = _plain(_label(tokens[position]))
                axis.text(
                    position + 0.5,
                    step + 0.5,
                    text,
                    in_layout=False,  # within the axes
                    ha="center",
                    va="center",
                    fontsize=8 if len(tokens) <= LEGIBLE / 2 else 7,
                )


def _plain(text: str) -> str:
    """Escape dollar signs, which would start a formula."""
    return text.replace("$", r"\$")


def _label(token: str) -> str:
    """Abbreviate tags and special tokens so that they fit into a cell."""
    if token.startswith("<|"):
        return "·"
    return token[1:3] if token.startswith("</") else token[:2]
