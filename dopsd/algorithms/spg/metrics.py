"""Metrics that spg logs."""

from __future__ import annotations

from dopsd.algorithms.common.metrics import GROUPS
from dopsd.core.metrics import Metric

LOSS = "dopsd.algorithms.spg.loss"

METRICS = GROUPS | {
    "elbo": Metric(
        "nats",
        "lower bound of the log-likelihood for each token: mean $\\ln p$ at masked tokens, mean"
        " over masks and completions",
        f"{LOSS}.lower_bound",
        "log-probability of a masked token, mean over masks and completions: a lower bound",
    ),
    "eubo": Metric(
        "nats",
        r"upper bound of the log-likelihood for each token:"
        r" $\frac{1}{\beta} \ln(\mathrm{mean}_j\, p^\beta 1_{\text{masked}} / t_j)$ over masks"
        " $j$, mean over masked tokens and completions",
        f"{LOSS}.upper_bound",
        "upper bound of the log-probability of a token, mean over completions",
    ),
}
