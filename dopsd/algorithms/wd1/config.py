"""Settings of wd1."""

from typing import ClassVar

from dopsd.algorithms.common.config import (
    GROUPS,
    MASKED_LOGP,
    Forwards,
    IteratedGroupConfig,
    TrainOverrides,
)
from dopsd.core.settings import Count, Share
from dopsd.rollout.config import SamplingConfig


class Wd1Config(IteratedGroupConfig):
    """Settings of wd1, a weighted log-likelihood without a ratio (arXiv 2507.08838)."""

    iterations: Count = 12  # updates per collect, each with new prompt masks; Sudoku: 8
    prompt_mask: Share = 0.15  # share of prompt tokens masked in each update
    train: TrainOverrides = TrainOverrides(  # what this method changes in section train
        learning_rate=3e-6, prompts_per_collect=8
    )
    needs_reference: ClassVar[bool] = False

    def forwards(self, sampling: SamplingConfig) -> Forwards:
        """Return what a problem costs: a collect makes no forward beside sampling."""
        return self.forwards_each(0, 1)


METRICS = GROUPS | {"logp": MASKED_LOGP}
