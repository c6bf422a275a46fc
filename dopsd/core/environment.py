"""Names of environment variables that processes of dopsd and DVC exchange."""

from __future__ import annotations

import os

from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError

DVC_STAGE = "DVC_STAGE"  # set by DVC for its stages
DVC_PID = "DOPSD_DVC"  # set for stages: process id of the DVC that runs them
RESTORE_ONLY = "DOPSD_RESTORE_ONLY"  # set while results are collected: stages must not compute


def refuse_while_collecting(stage: str) -> None:
    """Refuse to compute a stage while results of other machines are collected.

    Raises:
        DopsdError: if they are, and DVC did not find this one's.
    """
    if os.environ.get(RESTORE_ONLY) and stage not in ("prepare", "pretrain"):
        raise DopsdError(
            f"{stage}: no machine has sent a result of these settings, data and code to DVC's"
            " remote; run it there, with the same commit, or here with `dopsd repro`",
            code=Code.NO_RESULTS,
        )
