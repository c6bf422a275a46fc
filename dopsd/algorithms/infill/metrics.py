"""Metrics that infill logs."""

from __future__ import annotations

from dopsd.algorithms.common.metrics import DISTILLATION
from dopsd.core.metrics import Metric

COUNTED = "dopsd.algorithms.infill.lessons.count"
METRICS = {
    "span_share": Metric(
        "share",
        "kept rollouts with an answer span that the verifier reads and that can hold the answer;"
        " the others are dropped",
        COUNTED,
    ),
    "changed_share": Metric(
        "share", "rollouts among them whose own answer is another text than the one shown", COUNTED
    ),
    "rebuilt_share": Metric(
        "share",
        "rollouts among them whose own answer has another number of tokens, so that the end of the"
        " completion was built again",
        COUNTED,
    ),
    **DISTILLATION,
}
