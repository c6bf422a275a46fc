"""`dopsd follow`: send a run's log to the tracking server during training."""

from __future__ import annotations

import select
import sys
from typing import TYPE_CHECKING

from dopsd.core.extras import require
from dopsd.tracking.client import upload_log
from dopsd.tracking.identity import identity
from dopsd.training.run_settings import scratch_folder

if TYPE_CHECKING:
    from dopsd.tracking.config import TrackingConfig
    from dopsd.training.run_settings import RunSettings


def run_log_uploader(run: RunSettings, tracking: TrackingConfig) -> None:
    """Send a run's log until standard input closes.

    Training starts this process, and closes its standard input at the end.
    """
    require("follow", "mlflow")

    def is_over(seconds: float) -> bool:
        return bool(select.select([sys.stdin], [], [], seconds)[0])

    upload_log(identity(run, tracking), scratch_folder(run), is_over)
