"""Settings of supervised fine-tuning."""

from __future__ import annotations

from dopsd.algorithms.common.config import AlgorithmConfig, TrainOverrides
from dopsd.core.settings import Count
from dopsd.models.config import AdapterConfig
from dopsd.tasks.common.config import Source


class SftConfig(AlgorithmConfig):
    """Fine-tuning on solutions by masked diffusion (d1, arXiv 2504.12216, section 3.1).

    `traces` names rows {question, response}; null takes the task's own reference solutions, which
    is ours: d1 takes the 1000 traces of s1K, 20 epochs of them (1250 updates), cut to 4096 tokens
    with their question. `length` is that of the response with its padding, in tokens; null takes
    sampling.gen_length.
    """

    traces: Source | None = None
    length: Count | None = None
    train: TrainOverrides = TrainOverrides(
        learning_rate=1e-5,
        prompts_per_collect=16,
        lora=AdapterConfig(r=128, alpha=256, dropout=0.05, targets=["q_proj", "k_proj", "v_proj"]),
    )

    @property
    def wants_solutions(self) -> bool:
        return self.traces is None
