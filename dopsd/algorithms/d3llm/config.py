"""Settings of d3LLM."""

from __future__ import annotations

from dopsd.algorithms.common.config import (
    CROSS_ENTROPY_BYTES,
    AlgorithmConfig,
    Forwards,
    TrainOverrides,
)
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

    @property
    def depends_on_length(self) -> bool:
        """Whether batches depend on the number of updates: yes, block and masks grow with it."""
        return True

    @property
    def wants_solutions(self) -> bool:
        """Whether the method needs reference solutions: always."""
        return True

    def forwards(self, sampling: SamplingConfig) -> Forwards:
        """Return what a solution costs, without its recording: two masks, which share a block."""
        return Forwards(0, 0, 2)

    def logit_bytes(self, sampling: SamplingConfig) -> int:
        """Return the bytes of the logits of a block."""
        return CROSS_ENTROPY_BYTES * self.last_block
