"""Settings of d3LLM."""

from typing import ClassVar

from dopsd.algorithms.common.config import (
    CROSS_ENTROPY_BYTES,
    AlgorithmConfig,
    Forwards,
    TrainOverrides,
)
from dopsd.core.metrics import Metric
from dopsd.core.settings import Count, NonNegative, Positive, PositiveShare
from dopsd.models.config import AdapterConfig
from dopsd.rollout.config import SamplingConfig


class D3llmConfig(AlgorithmConfig):
    """Settings of d3LLM: off-policy self-distillation along recorded trajectories.

    Block and share of masks grow over training.
    """

    tries: Count = 5  # most tries of a recording; the first is greedy, a correct one ends them
    warmer: Positive = 0.1  # temperature added at each further try
    first_block: Count = 16  # tokens of the trained block at the first update
    last_block: Count = 32  # tokens of the trained block at the last update
    most_masked: PositiveShare = 0.8  # largest share of the block to mask
    entropy_weight: NonNegative = 2.0  # weight of the entropy term, next to two cross-entropies
    entropy_temperature: Positive = 0.5  # softmax temperature inside the entropy term
    train: TrainOverrides = TrainOverrides(  # what this method changes in section train
        learning_rate=2e-5, prompts_per_collect=64, lora=AdapterConfig(r=256, alpha=256)
    )
    depends_on_length: ClassVar[bool] = True
    wants_solutions: ClassVar[bool] = True
    fixes_steps: ClassVar[bool] = True

    def forwards(self, sampling: SamplingConfig) -> Forwards:
        """Return what a solution costs, two masks which share a block, and the recordings."""
        return Forwards(0, 0, 2, self.tries)

    def logit_bytes(self, sampling: SamplingConfig) -> int:
        """Return the bytes of the logits of a block."""
        return CROSS_ENTROPY_BYTES * self.last_block


COLLECT = "dopsd.algorithms.d3llm.algorithm.D3llm.collect"
LOSS = "dopsd.algorithms.d3llm.algorithm.unmasking"

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
