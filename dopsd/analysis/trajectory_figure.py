"""Draw a denoising trajectory: student and teacher states at each step (paper, Fig. 2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dopsd.analysis.figures import axes_of, save_figure

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

COLOURS = {
    "lightgrey": "mask",
    "palegreen": "mask that this step fills in",
    "white": "filled in by an earlier step",
    "orange": "mask in whose place the teacher sees the later token",
}
LEGIBLE = 64  # most tokens of an answer whose text still fits the cells


def draw_trajectory(trajectory: dict[str, Any], path: Path) -> None:
    """Draw the student's and the teacher's states side by side, one row for each step.

    COLOURS has the meaning of the cells. Tokens are written into the cells of answers of up to
    LEGIBLE tokens.

    Args:
        trajectory: contents of trajectory.json, as `dopsd test` writes it.
        path: the PNG file to write.
    """
    from matplotlib.patches import Patch

    tokens, shown_by_step = trajectory["tokens"], trajectory["shown"]
    is_legible = len(tokens) <= LEGIBLE
    size = (0.62 * len(tokens), 0.32 * len(shown_by_step) + 1) if is_legible else (20, 10)
    figure, axes = axes_of(1, 2, size)
    figure.set_layout_engine("constrained")
    nothing: list[list[int]] = [[] for _ in shown_by_step]
    _draw_side(axes[0][0], trajectory, nothing, "what the student sees")
    _draw_side(axes[0][1], trajectory, shown_by_step, "what the teacher sees")
    verdict, question = trajectory["verdict"], " ".join(trajectory["problem"].split())
    figure.suptitle(
        _plain(
            f"problem {question[:100]}   answer {str(verdict['answer'])[:40]}   score"
            f" {verdict['score']:.2f}"
        )
    )
    patches = [
        Patch(facecolor=colour, edgecolor="grey", label=label) for colour, label in COLOURS.items()
    ]
    figure.legend(handles=patches, loc="outside lower center", ncols=len(patches), frameon=False)
    save_figure(figure, path)


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
    axis.set(title=title, xlabel="position in the answer", ylabel="step")
    axis.set_xticks(range(0, len(tokens) + 1, block_length))
    axis.yaxis.set_major_locator(MaxNLocator(integer=True))
    for edge in range(0, len(tokens) + 1, block_length):
        axis.axvline(edge, color="black", lw=0.8)
    if len(tokens) <= LEGIBLE:
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
                axis.text(position + 0.5, step + 0.5, text, ha="center", va="center", fontsize=9)


def _plain(text: str) -> str:
    """Escape dollar signs, which would start a formula."""
    return text.replace("$", r"\$")


def _label(token: str) -> str:
    """Abbreviate tags and special tokens so that they fit into a cell."""
    if token.startswith("<|"):
        return "·"
    if token.startswith("<"):
        return f"/{token[2]}" if token.startswith("</") else f"<{token[1]}"
    return token[:2]
