"""Draw figures of README and the results: `python docs/figures.py rlvr`, or `states TRAJECTORY`.

TRAJECTORY is a run's test/trajectory.json, as `dopsd test` writes it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch
from results_tables import TITLES, results_of, standing

from dopsd.analysis import trajectory_figure as drawing
from dopsd.core.palette import NEUTRAL, PALETTE

DOCS = Path(__file__).parent
STEPS = (1, 5, 9, 13)


def states(path: Path) -> None:
    """Draw the student's and the teacher's state at each of STEPS, one above the other."""
    trajectory = json.loads(path.read_text())
    tokens, shown = trajectory["tokens"], trajectory["shown"]
    figure, axes = plt.subplots(len(STEPS), 1, figsize=(10, 3.4), sharex=True, layout="constrained")
    for axis, step in zip(axes, STEPS, strict=True):
        cells = [
            [
                drawing._kind(at, step, position in positions)
                for position, at in enumerate(trajectory["revealed_at"])
            ]
            for positions in ((), shown[step])
        ]
        axis.imshow(
            cells,
            ListedColormap(list(drawing.COLOURS)),
            vmin=0,
            vmax=len(drawing.COLOURS) - 1,
            extent=(0, len(tokens), 2, 0),
            aspect="auto",
        )
        drawing._write_tokens(axis, cells, tokens)
        axis.set_yticks([0.5, 1.5], [f"step {step + 1}: student", "teacher"], fontsize=9)
        axis.tick_params(length=0, labelbottom=False)
        axis.axhline(1, color="white", lw=1)
        for edge in range(0, len(tokens) + 1, trajectory["block_length"]):
            axis.axvline(edge, color="black", lw=0.8)
    patches = [
        Patch(facecolor=colour, edgecolor="grey", label=label)
        for colour, label in drawing.COLOURS.items()
    ]
    figure.legend(handles=patches, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    figure.savefig(DOCS / "states.png", dpi=110)


def rlvr() -> None:
    """Draw d-OPSD and TraceRL on each task: every seed, the mean, and the base."""
    figure, axes = plt.subplots(1, 3, figsize=(10, 2.5), layout="constrained")
    for axis, task in zip(axes, ("sudoku", "countdown", "chains"), strict=True):
        base = 100 * results_of("reveal")["bases"][task]["test"]
        axis.axhline(base, color=NEUTRAL, ls="--", lw=1)
        axis.text(1.45, base, "base", va="bottom", ha="right", fontsize=8, color=NEUTRAL)
        for x, (entry, colour) in enumerate((("half_shown", PALETTE[0]), ("trace_rl", PALETTE[2]))):
            row = standing("reveal", task, entry) or {}
            axis.plot([x] * row["seeds"], [100 * v for v in row["by_seed"].values()], "o", ms=4,
                      color=colour, alpha=0.5)  # fmt: skip
            axis.plot([x - 0.2, x + 0.2], [100 * row["test"]] * 2, color=colour, lw=2.5)
        axis.set(
            ylim=(base - 2, base + 22),
            xlim=(-0.5, 1.5),
            xticks=(0, 1),
            xticklabels=("d-OPSD", "TraceRL"),
        )
        axis.set_title(TITLES[task], loc="left", fontsize=10)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    axes[0].set_ylabel("accuracy in %")
    figure.savefig(DOCS / "rlvr.png", dpi=110)


if __name__ == "__main__":
    if sys.argv[1] == "states":
        states(Path(sys.argv[2]))
    else:
        rlvr()
