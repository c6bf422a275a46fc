"""Metrics that infill logs."""

from __future__ import annotations

from dopsd.algorithms.common.metrics import DISTILLATION, TRACE
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
    "answer_shift": Metric(
        "share",
        r"with `least_shift`: $\frac{1}{2} \sum_v \lvert q(v) - q_0(v) \rvert$ of the teacher with"
        " the answer, $q$, and without it, $q_0$, mean over the masked positions of the block, in a"
        " quarter of the states where it is shown some",
        "dopsd.algorithms.infill.gate.answer_shift",
        "how much of the teacher's prediction the shown answer changes; 0: it says nothing",
    ),
    "taught_collects": Metric(
        "share",
        "with `least_shift`: collects that learn from the teacher; the others learn from rewards",
        "dopsd.algorithms.infill.algorithm.Infill.collect",
    ),
    **TRACE,
    **DISTILLATION,
}
