"""Metrics that trace_rl logs."""

from __future__ import annotations

from dopsd.algorithms.common.metrics import GROUPS
from dopsd.core.metrics import Metric

LOSS = "dopsd.algorithms.common.trace_loss.state_losses"

METRICS = GROUPS | {
    "credited": Metric(
        "share",
        "predicted tokens for which the teacher of `credit` is shown a verified future, and so can"
        " change the advantage; 0 without `credit`",
        "dopsd.algorithms.common.trace_teacher.shown_positions",
    ),
    "kept_groups": Metric(
        "share",
        "groups that are trained on: their rewards differ, with a mean between `least_mean_reward`"
        " and `most_mean_reward`",
        "dopsd.algorithms.common.trace_gradient.TraceGradient.collect",
    ),
    "kl": Metric(
        "nats",
        r"$e^{\Delta} - \Delta - 1$ with $\Delta = \ln p_{\text{ref}} - \ln p_\theta$, mean over"
        " predicted tokens: estimated KL to the policy of `kl_to`",
        LOSS,
        "estimated distance (KL divergence) from the policy of `kl_to`, mean over tokens",
    ),
    "clip_ratio": Metric(
        "share",
        r"predicted tokens whose gain the clip lowers: $\mathrm{clip}(r, 1 \pm \epsilon) A < r A$"
        r" with $r = p_\theta / p_{\text{old}}$ and the advantage $A$",
        LOSS,
        "tokens whose gain the clip lowers, since their probability has already changed much",
    ),
    "logp": Metric(
        "nats",
        r"$\ln p_\theta(y_k)$ in the recorded state, mean over predicted tokens",
        "dopsd.algorithms.common.views.view_logps",
        "log-probability of a token of the rollouts, in the state in which it is predicted",
    ),
}
