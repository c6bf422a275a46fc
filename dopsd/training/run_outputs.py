"""Write the outputs of a finished run for later stages: checkpoints, log and counters."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from dopsd.core.error_codes import Code
from dopsd.core.errors import TEMPORARY, DopsdError
from dopsd.core.files import fresh_folder, write_json
from dopsd.core.tables import read_log, write_table
from dopsd.models.run_checkpoints import MANIFEST, copy_checkpoint
from dopsd.training import checkpoint
from dopsd.training.checkpoint import update_of
from dopsd.training.resuming import log_of, record_of
from dopsd.training.run_identity import codes

if TYPE_CHECKING:
    from pathlib import Path


def publish_run(scratch: Path, out: Path, every: int, start: dict[str, str]) -> None:
    """Copy a finished run's checkpoints, log and counters to the outputs of stage `train`.

    Timings and run ids are left out, so that equal runs give equal bytes.

    Args:
        scratch: the run's folder in work/.
        out: the folder for checkpoints; the log goes to `out`.csv and the counters to `out`.json.
        every: train.checkpoint_every.
        start: folder and digest of the checkpoint that the run started from; empty: none.

    Raises:
        DopsdError: if a checkpoint was damaged after saving.
    """
    checkpoints = checkpoint.checkpoints(scratch)
    last_update, known_folders = (
        max((saved.update for saved in checkpoints), default=0),
        {saved.path for saved in checkpoints},
    )
    for folder in checkpoint.folders(scratch):
        if folder not in known_folders and (
            update_of(folder) % every == 0 or update_of(folder) > last_update
        ):
            raise DopsdError(
                f"train: {folder} was damaged after saving; run the same command to repeat it",
                TEMPORARY,
                code=Code.CHECKPOINTS_DIFFER,
            )
    with fresh_folder(out) as tmp:
        wanted = [c for c in checkpoints if c.update % every == 0 or c is checkpoints[-1]]
        for saved in wanted:
            copy_checkpoint(saved.path, tmp / saved.path.name)
        write_json(tmp / MANIFEST, {saved.path.name: saved.digest for saved in wanted})
    rows = [
        {k: v for k, v in row.items() if not k.startswith("time/")}
        for row in read_log(log_of(checkpoints[-1].path))
    ]
    write_table(out.with_suffix(".csv"), rows)
    # state.json also counts collects after the last update
    counts = json.loads((checkpoints[-1].path / "state.json").read_text(encoding="utf-8"))[
        "counters"
    ]
    # a run that was interrupted at its end, or was longer before, has such collects
    if checkpoints[-1].update == record_of(scratch)["ends"]["updates"]:
        counts = {
            name.removeprefix("count/"): value
            for name, value in rows[-1].items()
            if name.startswith("count/")
        }
    write_json(
        out.with_suffix(".json"),
        {
            "fingerprint": scratch.name,
            "updates": checkpoints[-1].update,
            **codes(scratch),
            **start,
            **counts,
        },
    )
