"""Settings of rejection fine-tuning."""

from typing import ClassVar

from dopsd.algorithms.common.config import MASKED_CROSS_ENTROPY, Forwards, SelectingConfig
from dopsd.core.settings import Count
from dopsd.rollout.config import SamplingConfig


class RftConfig(SelectingConfig):
    """Settings of rejection fine-tuning on kept rollouts; all are this project's."""

    draws_per_rollout: Count = 4  # random masks of each kept rollout in an update
    updates_per_collect: Count = 1  # updates per collect, each with new masks
    needs_reference: ClassVar[bool] = False

    @property
    def updates_of_collect(self) -> int:
        """Updates that follow a collect."""
        return self.updates_per_collect

    def forwards(self, sampling: SamplingConfig) -> Forwards:
        """Return what a problem costs: the masks of its kept rollout in every update."""
        return Forwards(self.attempts, 0, self.draws_per_rollout * self.updates_per_collect)


METRICS = {"cross_entropy": MASKED_CROSS_ENTROPY}
