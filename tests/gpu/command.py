"""A command of dopsd on the pretended device, with true values."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

REPORT = "PRETENDED_GPU_REPORT"  # variable: the file that gets waits by line and peak memory
KILLED_AT = "PRETENDED_GPU_KILLED_AT"  # variable: the update at whose begin the process dies


def run(words: list[str]) -> int:
    """Run `dopsd WORDS` and return its exit code; waits and memory go to REPORT or stderr."""
    from gpu import attention, cuda_api

    cuda_api.announce()
    attention.use()
    from dopsd.cli.main import main
    from dopsd.pipeline.doctor import card
    from gpu.device import Device

    card.SIZE = 64  # of the matrices that doctor times
    if KILLED_AT in os.environ:
        _die_at(int(os.environ[KILLED_AT]))
    with Device() as device:
        code = main(words)
    report = {"peak_bytes": device.memory.peak, "syncs_by_line": device.syncs.by_line()}
    if REPORT in os.environ:
        Path(os.environ[REPORT]).write_text(json.dumps(report))
    else:
        sys.stderr.write(json.dumps(report, indent=1) + "\n")
    return code


def _die_at(update: int) -> None:
    """Kill this process when it begins an update."""
    from dopsd.training.trainer import Trainer

    step = Trainer.accumulate

    def dying(self: Trainer) -> Any:
        if self.update == update:
            os.kill(os.getpid(), signal.SIGKILL)
        return step(self)

    Trainer.accumulate = dying  # type: ignore[method-assign]
