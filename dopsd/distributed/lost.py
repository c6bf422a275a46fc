"""Tell whether an exchange failed because another process of the run no longer answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.distributed as dist

from dopsd.core.error_codes import Code
from dopsd.core.errors import TEMPORARY, DopsdError

if TYPE_CHECKING:
    from pathlib import Path

GLOO = ("gloo/", "pair closure")  # in messages of gloo, whose errors have no class of their own


def is_lost(error: RuntimeError) -> bool:
    """Return whether another process ended, or did not answer within launch.timeout."""
    return isinstance(error, dist.DistError) or any(word in str(error) for word in GLOO)


def lost(scratch: Path, error: RuntimeError) -> DopsdError:
    """Return the error that ends a run whose other processes no longer answer.

    Args:
        scratch: the folder of the run's checkpoints.
        error: what the exchange failed with.
    """
    words = " ".join(str(error).rpartition("] ")[2].split())
    return DopsdError(
        f"train: another process of the run ended or does not answer ({words[:70]}); the"
        f" same command continues from the last checkpoint in {scratch}. launch.timeout says how"
        " long to wait for an answer",
        TEMPORARY,
        code=Code.PROCESS_LOST,
    )
