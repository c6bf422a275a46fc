"""Metrics that routed logs."""

from __future__ import annotations

from dopsd.algorithms.common.metrics import DISTILLATION, TRACE
from dopsd.core.metrics import Metric

METRICS = TRACE | {
    "taught_states": Metric(
        "share",
        "states that learn from the teacher, of all states of the kept groups: their teacher is"
        " shown a verified future, and `teach` chooses their rollout",
        "dopsd.algorithms.routed.algorithm.Routed.prepared",
    ),
    "divergence": Metric(
        "nats",
        "`divergence` of student and teacher before it is bounded, mean over the predicted tokens"
        " of taught states that the teacher is not shown",
        "dopsd.algorithms.routed.loss.lesson",
    ),
    "scaled_positions": Metric(
        "share",
        "those predicted tokens of taught states whose divergence exceeds `clip` and is scaled"
        " down",
        "dopsd.algorithms.common.divergence.position_scale",
    ),
    "shared_mass": DISTILLATION["shared_mass"],
}
