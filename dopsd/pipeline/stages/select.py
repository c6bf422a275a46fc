"""`dopsd select --task sudoku --method d_opsd --seed 0`: copy the best checkpoint of a run.

The best checkpoint has the highest accuracy on the selection split; the earliest wins a tie. The
paper takes the best of 20 checkpoints on the test set. `select.split: test` does the same, and logs
a warning.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from dopsd.core.errors import Code
from dopsd.core.files import read_json, write_json
from dopsd.core.fingerprint import sha256
from dopsd.core.paths import run_folder
from dopsd.core.progress import log
from dopsd.models.adapter_files import copy_checkpoint, identity, run_checkpoints

if TYPE_CHECKING:
    from dopsd.config.params import Params


def run(params: Params, task_name: str, method_name: str, seed: int) -> None:
    """Copy the best checkpoint to runs/<task>/<method>/<seed>/best, with select.json."""
    folder = run_folder(task_name, method_name, seed)
    summary = read_json(folder / "evaluate.json", "dopsd evaluate")
    name = f"step-{summary['best_update']:06d}"
    chosen = next((c for c in run_checkpoints(folder / "train") if c.name == name), None)
    if chosen is None:
        raise Code.STAGE_MISSING.error(
            f"{folder / 'train' / name}: is not here; run `dopsd train --task {task_name} --method"
            f" {method_name} --seed {seed}` first"
        )
    tmp = folder / ".best.tmp"
    shutil.rmtree(tmp, ignore_errors=True)
    copy_checkpoint(chosen, tmp)
    facts = {
        "update": summary["best_update"],
        "accuracy": summary["best"],
        "base_accuracy": summary["base"],
        "n": summary["n"],
    }
    facts |= {"start_accuracy": summary["start"]} if "start" in summary else {}
    facts |= {"raced": len(summary["race"])} if summary.get("race") else {}
    write_json(
        tmp / "select.json",
        facts
        | {k: summary[k] for k in ("split", "protocol")}
        | {"digest": sha256(identity(chosen))},
    )
    shutil.rmtree(folder / "best", ignore_errors=True)
    tmp.rename(folder / "best")
    if params.select.split == "test":
        log(
            "select: checkpoint chosen ON THE TEST SET (select.split: test), as in the paper; the"
            " test accuracy is optimistic"
        )
    for name in ("base", "start"):
        if name in summary and summary["best"] <= summary[name]:
            log(
                f"select: no checkpoint beats the {name} on {summary['split']}"
                f" ({summary['best']:.4f} against {summary[name]:.4f})"
            )
