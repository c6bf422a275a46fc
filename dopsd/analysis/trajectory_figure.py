"""A denoising trajectory as a figure: student and teacher states step by step (paper, Fig. 2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dopsd.analysis.figures import axes_of, save_figure

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

COLOURS = (
    "lightgrey",
    "palegreen",
    "white",
    "orange",
)  # masked, committed now, known, shown to the teacher
LEGIBLE = 64  # tokens whose text still fits their cells


def draw_trajectory(trajectory: dict[str, Any], path: Path) -> None:
    """Student and teacher states side by side, a row a step: which token was revealed when (paper,
    Fig. 2).

    Grey is masked, green committed at this step, white known, orange shown to the teacher; tokens
    are written where they can be read.
    """
    from matplotlib.colors import ListedColormap
    from matplotlib.ticker import MaxNLocator

    tokens, revealed_at, shown_by_step = (
        trajectory["tokens"],
        trajectory["revealed_at"],
        trajectory["shown"],
    )
    is_legible = len(tokens) <= LEGIBLE
    size = (0.62 * len(tokens), 0.32 * len(shown_by_step) + 1) if is_legible else (20, 10)
    figure, axes = axes_of(1, 2, size)
    for axis, title in zip(
        axes[0], ("student state", "teacher state (future tokens shown in orange)"), strict=True
    ):
        shown_rows = shown_by_step if axis is axes[0][1] else [[] for _ in shown_by_step]
        cells = [
            [
                _kind(revealed_step, step, position in shown_positions)
                for position, revealed_step in enumerate(revealed_at)
            ]
            for step, shown_positions in enumerate(map(set, shown_rows))
        ]
        extent = (0, len(tokens), len(shown_by_step), 0)
        axis.imshow(
            cells,
            ListedColormap(COLOURS),
            vmin=0,
            vmax=len(COLOURS) - 1,
            extent=extent,
            aspect="auto",
        )
        axis.set(title=title, xlabel="position in the answer", ylabel="step")
        axis.set_xticks(range(0, len(tokens) + 1, trajectory["block_length"]))
        axis.yaxis.set_major_locator(MaxNLocator(integer=True))
        for edge in range(0, len(tokens) + 1, trajectory["block_length"]):
            axis.axvline(edge, color="black", lw=0.8)
        if is_legible:
            _write_tokens(axis, cells, tokens)
    verdict, question = trajectory["verdict"], " ".join(trajectory["problem"].split())
    figure.suptitle(
        _plain(
            f"{question[:100]}   answer {str(verdict['answer'])[:40]}   score"
            f" {verdict['score']:.2f}"
        )
    )
    save_figure(figure, path)


def _kind(revealed_at: int, step: int, is_shown: bool) -> int:
    """Index into COLOURS of a cell."""
    return 3 if is_shown else 1 if revealed_at == step else 0 if revealed_at > step else 2


def _write_tokens(axis: Axes, cells: list[list[int]], tokens: list[str]) -> None:
    axis.set_xticks(range(len(tokens) + 1), minor=True)
    axis.set_yticks(range(len(cells) + 1), minor=True)
    axis.grid(which="minor", color="white", lw=0.3)
    for step, row in enumerate(cells):
        for position, kind in enumerate(row):
            if kind:
                text = _plain(_label(tokens[position]))
                axis.text(position + 0.5, step + 0.5, text, ha="center", va="center", fontsize=7)


def _plain(text: str) -> str:
    """A dollar sign would start a formula."""
    return text.replace("$", r"\$")


def _label(token: str) -> str:
    """Tags and special tokens by their first letters, so that they fit a cell."""
    if token.startswith("<|"):
        return "·"
    return (
        token
        if len(token) == 1
        else token.strip("<>")[:2]
        if "/" not in token
        else "/" + token.strip("</>")[:1]
    )
