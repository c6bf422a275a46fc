"""A command of dopsd on the pretended device, with true values."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

REPORT = "PRETENDED_GPU_REPORT"  # a file that gets waits by line and peak memory, as JSON


def run(words: list[str]) -> int:
    """Run `dopsd WORDS` and return its exit code."""
    from gpu import attention, cuda_api

    cuda_api.announce()
    attention.use()
    from dopsd.cli.main import main
    from gpu.device import Device

    with Device() as device:
        code = main(words)
    report = {"peak_bytes": device.memory.peak, "syncs_by_line": device.syncs.by_line()}
    if REPORT in os.environ:
        Path(os.environ[REPORT]).write_text(json.dumps(report))
    else:
        sys.stderr.write(json.dumps(report, indent=1) + "\n")
    return code
