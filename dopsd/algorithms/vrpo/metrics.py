"""Metrics that vrpo logs."""

from __future__ import annotations

from dopsd.core.metrics import Metric

COLLECT = "dopsd.algorithms.vrpo.algorithm.Vrpo.collect"
LOSS = "dopsd.algorithms.vrpo.algorithm.Vrpo.loss"

METRICS = {
    "paired": Metric(
        "share", "problems that give a pair: one attempt better than another", COLLECT
    ),
    "initial_first_attempt_score": Metric(
        "share",
        "mean score of first attempts of the initial policy, which samples with `pairs: initial`;"
        " in the place of `first_attempt_score`",
        COLLECT,
    ),
    "margin": Metric(
        "nats",
        r"$\beta [(B_\theta - B_{\text{ref}})(y^+) - (B_\theta - B_{\text{ref}})(y^-)]$, mean over"
        " pairs; $B$ is the bound of the log-likelihood of a completion",
        "dopsd.algorithms.vrpo.loss.preference",
        "by how much training has raised the better answer of a pair over the worse one",
    ),
    "preferred": Metric("share", "pairs with a margin above 0", LOSS),
    "cross_entropy": Metric(
        "nats",
        r"$-B_\theta(y^+) / L_{y^+}$, mean over pairs: the fine-tuning term, for each token of the"
        " preferred completion",
        LOSS,
        "how surprised the model is by the better answers, for each of their tokens",
    ),
}
