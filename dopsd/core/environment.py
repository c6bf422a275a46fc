"""Names of environment variables that dopsd's own processes exchange."""

from __future__ import annotations

DVC_PID = "DOPSD_DVC"  # set for stages: process id of the DVC that runs them
RESTORE_ONLY = "DOPSD_RESTORE_ONLY"  # set while results are collected: stages must not compute
