"""Names of environment variables that processes of ours tell each other by."""

from __future__ import annotations

DVC_PID = "DOPSD_DVC"  # in the environment of stages: this process
