"""Names of environment variables that dopsd's own processes exchange."""

from __future__ import annotations

DVC_PID = "DOPSD_DVC"  # set for stages: process id of the DVC that runs them
