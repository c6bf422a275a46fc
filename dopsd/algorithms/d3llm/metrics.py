"""Metrics that d3llm logs."""

from __future__ import annotations

from dopsd.core.metrics import Metric

COLLECT = "dopsd.algorithms.d3llm.algorithm.D3llm.collect"
LOSS = "dopsd.algorithms.d3llm.loss.unmasking"

METRICS = {
    "recorded_correct": Metric(
        "share", "problems whose recorded trajectory ends in a right answer", COLLECT
    ),
    "time/borrowed_seconds": Metric(
        "seconds",
        "what the recordings took that an earlier run made: comparisons add it to the cost; not in"
        " `train.csv`",
        COLLECT,
    ),
    "time/borrowed_cpu_seconds": Metric(
        "seconds", "the same in seconds of the processors; not in `train.csv`", COLLECT
    ),
    "cross_entropy": Metric(
        "nats",
        r"$\frac{1}{2}(C + \bar C)$, mean over problems: $C$ is the mean of $-\ln p(y_k)$ over the"
        r" masked tokens of the block, $\bar C$ over the block's other tokens",
        LOSS,
        "how surprised the model is by the tokens of a block, its masked and its other ones, mean"
        " over problems",
    ),
    "entropy": Metric(
        "nats",
        "entropy of $p$ at `entropy_temperature`, mean over those of both sets of tokens at which"
        " the most probable token is right, then over problems",
        LOSS,
        "how unsure the model is where its most probable token is right, mean over problems",
    ),
}
