"""Metrics that trace_rl logs."""

from __future__ import annotations

from dopsd.algorithms.common.metrics import TRACE
from dopsd.core.metrics import Metric

METRICS = TRACE | {
    "credited": Metric(
        "share",
        "predicted tokens for which the teacher of `credit` is shown a verified future, and so can"
        " change the advantage; 0 without `credit`",
        "dopsd.algorithms.common.trace_teacher.shown_positions",
    ),
}
