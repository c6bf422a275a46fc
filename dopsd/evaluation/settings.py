"""What an evaluation needs to know, without the rest of params.yaml."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dopsd.models.config import AdapterConfig, ModelConfig
    from dopsd.rollout.config import SamplingConfig
    from dopsd.tasks.common.config import TaskConfig


@dataclass(frozen=True)
class EvalSettings:
    """What an evaluation needs beside the protocol: the task, the model, and the sections that read
    them.

    `lora` is the shape of the adapters, `sampling` how training rollouts are asked.
    """

    task: str
    data: TaskConfig
    model: ModelConfig
    sampling: SamplingConfig
    lora: AdapterConfig
    bootstrap: int
    shard: bool = False
