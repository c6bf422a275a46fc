"""Settings of SPG."""

from __future__ import annotations

from typing import Literal

from dopsd.algorithms.common.config import Forwards, IteratedGroupConfig, TrainOverrides
from dopsd.core.settings import Count, Positive, Share
from dopsd.rollout.config import SamplingConfig


class SpgConfig(IteratedGroupConfig):
    """Settings of SPG, a policy gradient between two bounds (arXiv 2510.09541)."""

    iterations: Count = 4  # updates per collect, each with new masks
    draws: Count = 2  # masks per completion and update
    mask: Literal["block", "random"] = "block"  # block: a random block in part, later ones whole
    prompt_mask: Share = 0.15  # share of prompt tokens masked in each draw
    mask_earlier: bool = True  # block: mask tokens of earlier blocks with the same probability
    negative: Literal["mix", "eubo", "elbo", "none"] = "mix"  # bound of worse completions
    mix_weight: Share = 0.5  # share of the upper bound in mix
    eubo_beta: Positive = 1.5  # exponent of probabilities in the upper bound; Sudoku: 1.0
    train: TrainOverrides = TrainOverrides(  # what this method changes in section train
        learning_rate=3e-6, prompts_per_collect=16
    )

    def forwards(self, sampling: SamplingConfig) -> Forwards:
        """Return what a problem costs: a collect makes no forward beside sampling."""
        return self.forwards_each(0, self.draws)

    @property
    def needs_reference(self) -> bool:
        """Whether the method computes with the initial policy: no."""
        return False
