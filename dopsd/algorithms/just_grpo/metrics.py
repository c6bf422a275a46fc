"""Metrics that just_grpo logs."""

from __future__ import annotations

from dopsd.algorithms.common.metrics import GROUPS
from dopsd.core.metrics import Metric

METRICS = GROUPS | {
    "logp": Metric(
        "nats",
        r"$\ln p_\theta(y_t \mid y_{<t})$ with all later tokens masked, mean over scored positions",
        "dopsd.algorithms.just_grpo.algorithm.JustGrpo.loss",
        "log-probability of a token of the rollouts, seen after the tokens before it",
    ),
}
