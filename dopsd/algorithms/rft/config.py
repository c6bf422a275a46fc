"""Settings of rejection fine-tuning."""

from __future__ import annotations

from dopsd.algorithms.common.config import SelectingConfig
from dopsd.core.settings import Count


class RftConfig(SelectingConfig):
    """Rejection fine-tuning: masked-diffusion cross-entropy on the same kept rollouts. Settings are
    ours.
    """

    draws_per_rollout: Count = 4
    updates_per_collect: Count = 1
