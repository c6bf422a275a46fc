"""Settings of supervised fine-tuning."""

from dopsd.algorithms.common.config import (
    MASKED_CROSS_ENTROPY,
    AlgorithmConfig,
    Forwards,
    TrainOverrides,
)
from dopsd.core.settings import Count
from dopsd.models.config import AdapterConfig
from dopsd.rollout.config import SamplingConfig
from dopsd.tasks.common.config import Source


class SftConfig(AlgorithmConfig):
    """Settings of fine-tuning on solutions by masked diffusion (d1, arXiv 2504.12216, section 3.1).

    d1 trains on the 1000 traces of s1K: 20 epochs (1250 updates), cut to 4096 tokens with their
    question. Without `traces` the method learns the task's own reference solutions, which is this
    project's choice.
    """

    traces: Source | None = None  # rows {question, response}; null: the task's own solutions
    length: Count | None = None  # tokens of a response with padding; null: sampling.gen_length
    train: TrainOverrides = TrainOverrides(  # what this method changes in section train
        learning_rate=1e-5,
        schedule="linear",
        warmup_updates=0,
        betas=[0.9, 0.999],
        grad_clip=1.0,
        prompts_per_collect=16,
        lora=AdapterConfig(r=128, alpha=256, dropout=0.05, targets=["q_proj", "k_proj", "v_proj"]),
    )

    @property
    def wants_solutions(self) -> bool:
        """Whether the method needs the task's reference solutions: only without `traces`."""
        return self.traces is None

    def forwards(self, sampling: SamplingConfig) -> Forwards:
        """Return what a solution costs: one mask."""
        return Forwards(0, 0, 1)

    @property
    def needs_reference(self) -> bool:
        """Whether the method computes with the initial policy: no."""
        return False


METRICS = {"cross_entropy": MASKED_CROSS_ENTROPY}
