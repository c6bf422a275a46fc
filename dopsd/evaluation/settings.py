"""The settings that an evaluation needs from params.yaml."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dopsd.models.config import AdapterConfig, ModelConfig
    from dopsd.rollout.config import SamplingConfig
    from dopsd.tasks.common.config import TaskConfig


@dataclass(frozen=True)
class EvalSettings:
    """The settings of an evaluation, except its protocol."""

    task: str
    data: TaskConfig
    model: ModelConfig
    sampling: SamplingConfig  # of training rollouts
    lora: AdapterConfig | None  # shape of the adapters; None: checkpoints hold all weights
    bootstrap: int  # resamples of an interval
    shard: bool  # the base is split over the processes
    timeout: int  # launch.timeout: seconds to wait for another process
