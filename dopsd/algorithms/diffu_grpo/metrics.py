"""Metrics that diffu_grpo logs."""

from __future__ import annotations

from dopsd.algorithms.common.metrics import GROUPS, MASKED_LOGP
from dopsd.core.metrics import Metric

LOSS = "dopsd.algorithms.diffu_grpo.loss.policy_gradient"

METRICS = GROUPS | {
    "kl": Metric(
        "nats",
        r"$e^{\Delta} - \Delta - 1$ with $\Delta = \ln p_{\text{ref}} - \ln p_\theta$, mean over"
        " the tokens of the completions: estimated KL to the initial policy",
        LOSS,
        "estimated distance (KL divergence) from the initial policy, mean over tokens",
    ),
    "clip_ratio": Metric(
        "share",
        r"tokens whose gain the clip lowers: $\mathrm{clip}(r, 1 \pm \epsilon) A < r A$ with $r ="
        r" p_\theta / p_{\text{old}}$ and the advantage $A$",
        LOSS,
        "tokens whose gain the clip lowers, since their probability has already changed much",
    ),
    "logp": MASKED_LOGP,
}
