"""Settings of JustGRPO."""

import math
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from dopsd.algorithms.common.config import (
    CROSS_ENTROPY_BYTES,
    GROUPS,
    Forwards,
    GroupConfig,
    TrainOverrides,
)
from dopsd.core.metrics import Metric
from dopsd.core.settings import LARGEST, NonNegative, PositiveShare
from dopsd.rollout.config import SamplingConfig, ThresholdSampling


class JustGrpoConfig(GroupConfig):
    """Settings of JustGRPO (arXiv 2601.15165), whose rollouts are made from left to right."""

    group_size: Annotated[int, Field(ge=2, le=LARGEST)] = 16  # rollouts per problem
    temperature: NonNegative = 1.0  # of all rollouts; tokens are scored at 1
    reward: Literal["task", "correct"] = "correct"  # task: the task's reward; correct: 1 or 0
    epsilon: NonNegative = 1e-4  # added to the standard deviation that divides advantages
    after_end: bool = True  # also score tokens after the first end of text
    positions: Literal["all", "entropy_top", "fallback"] = "all"  # which ones to score
    entropy_share: PositiveShare = 0.2  # share of a rollout's positions that entropy_top scores
    threshold: PositiveShare | None = None  # of fallback: confidence of tokens committed at once
    train: TrainOverrides = TrainOverrides(  # what this method changes in section train
        prompts_per_collect=64,
        learning_rate=5e-6,
        warmup_updates=0,
        betas=[0.9, 0.999],
        weight_decay=0.0,
        grad_clip=1.0,
    )
    fixes_steps: ClassVar[bool] = True
    needs_reference: ClassVar[bool] = False

    def sampling_of(self, sampling: SamplingConfig) -> SamplingConfig:
        """Return how rollouts are made: from left to right, or in blocks with the threshold.

        Noise is exact whatever the section says: with the published d-OPSD noise in bfloat16 tokens
        are not drawn from the softmax by which they are scored.
        """
        values = sampling.model_dump() | {"steps": sampling.gen_length, "gumbel_dtype": "float32"}
        values["threshold"] = self.threshold
        if self.threshold is None:
            return SamplingConfig(**values | {"block_length": 1})
        return ThresholdSampling(**values)

    def reason_against(self, sampling: SamplingConfig) -> str | None:
        """Refuse to score tokens that were never sampled; marked steps were."""
        if self.after_end and self.threshold is None and sampling.stop_after_eos:
            return (
                "after_end scores tokens that sampling.stop_after_eos does not sample; set one to"
                " false"
            )
        return None

    def forwards(self, sampling: SamplingConfig) -> Forwards:
        """Return what a problem costs: a forward for each scored position."""
        length, is_top = sampling.gen_length, self.positions == "entropy_top"
        scored = math.ceil(self.entropy_share * length) if is_top else length
        parts = length if is_top else 0, scored
        return Forwards(self.group_size, *(self.group_size * part for part in parts))

    def logit_bytes(self, sampling: SamplingConfig) -> int:
        """Return the bytes of the logits of one position."""
        return CROSS_ENTROPY_BYTES

    @model_validator(mode="after")
    def fallback_has_a_threshold(self) -> Self:
        """Refuse positions fallback without a threshold, and a threshold without it."""
        if (self.positions == "fallback") != (self.threshold is not None):
            raise ValueError(
                "positions fallback and threshold need each other: steps at which no token reaches"
                " the threshold are scored; set both (paper: 0.8), or positions all, threshold null"
            )
        return self


METRICS = GROUPS | {
    "logp": Metric(
        "nats",
        r"$\ln p_\theta(y_t \mid y_{<t})$ with all later tokens masked, mean over scored positions",
        "dopsd.algorithms.just_grpo.algorithm.JustGrpo.loss",
        "log-probability of a token of the rollouts, seen after the tokens before it",
    ),
}
