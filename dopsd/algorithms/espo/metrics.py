"""Metrics that espo logs."""

from __future__ import annotations

from dopsd.algorithms.common.metrics import GROUPS
from dopsd.core.metrics import Metric

LOSS = "dopsd.algorithms.espo.algorithm.Espo.loss"

METRICS = GROUPS | {
    "kl": Metric(
        "nats",
        r"estimated KL to the initial policy: $(E - E_{\text{ref}})^2 / (2 L)$, mean over"
        r" completions, with $D$ in place of $E$ for `token_weight: one`; with `objective: token`"
        r" $e^{\Delta} - \Delta - 1$, $\Delta = \ln p_{\text{ref}} - \ln p_\theta$, mean over"
        r" tokens",
        LOSS,
        "estimated distance (KL divergence) from the initial policy",
    ),
    "clip_ratio": Metric(
        "share",
        r"completions, or tokens with `objective: token`, whose gain the clip lowers; with"
        " `objective: squared` those whose change is clamped, which have no gradient but the KL's",
        LOSS,
        "share of what is trained on that the clip stops, since its probability has changed much",
    ),
    "logp": Metric(
        "nats",
        r"estimate of $\ln p_\theta$ for each token: $E / L$, mean over completions, with"
        r" `token_weight: one` $D / L$, about half of the mean $\ln p_\theta$ of a token; with"
        r" `objective: token` mean over tokens",
        LOSS,
        "estimated log-probability of a token of the completions",
    ),
}
