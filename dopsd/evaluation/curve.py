"""The curve of a run: accuracy where training began, and at each checkpoint."""

from pathlib import Path
from typing import Any

from dopsd.core.files import read_json
from dopsd.core.tables import read_table


def start_of_curve(folder: Path) -> str:
    """Return the folder of the checkpoint that a run started from; empty: the base."""
    made = folder / "train.json"  # checkpoints alone may have been copied
    name: str = read_json(made, "dopsd train").get("started_from", "") if made.is_file() else ""
    return name


def curve_of(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of a run's curve.csv; update 0 is what training began with."""
    return read_table(folder / "curve.csv")
