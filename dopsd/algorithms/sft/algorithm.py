"""Supervised fine-tuning by masked diffusion on solutions.

d1 (arXiv 2504.12216), section 3.1; LLaDA, Eq. 5. Solutions are the task's own references, or rows
of `traces`. The model also learns the padding, which is end of text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from dopsd.algorithms.common.base import AlgorithmContext, Collected, LossOutput
from dopsd.algorithms.common.batch import MaskedTexts
from dopsd.algorithms.common.losses import masked_diffusion_loss, metric_sums
from dopsd.algorithms.common.masking import Text, masked
from dopsd.algorithms.common.solutions import Solutions, padded
from dopsd.core.errors import Code, DopsdError
from dopsd.core.metrics import MetricSums
from dopsd.core.progress import log
from dopsd.core.rng import key_from
from dopsd.core.types import Problem
from dopsd.rollout.collector import RolloutStats
from dopsd.tasks.common.sources import read_rows, text_of

if TYPE_CHECKING:
    from dopsd.algorithms.sft.config import SftConfig
    from dopsd.models.policy import Policy
    from dopsd.tasks.common.config import Source


def build(config: SftConfig, context: AlgorithmContext) -> Sft:
    """Return the algorithm with its settings and the run's context."""
    return Sft(config, context)


class Sft:
    """Learn solutions, without rollouts; every collect masks a batch of them anew."""

    normalize_by_all_prompts = False

    def __init__(self, config: SftConfig, context: AlgorithmContext) -> None:
        self.config, self.context, self.seed = config, context, context.seed
        self.length = config.length or context.sampling.gen_length
        self.solutions = Solutions(context.task, "sft", self.length)
        self.traces = self._read(context.policy, config.traces) if config.traces else []
        self.index = {problem.id: i for i, problem in enumerate(context.task.load("train"))}

    def _read(self, policy: Policy, source: Source) -> list[tuple[Tensor, Tensor]]:
        """Return rows {question, response} as tokens; those that are too long are left out."""
        rows = [
            (text_of(row, "question"), text_of(row, "response"))
            for row in read_rows(source, "method.sft.traces")
        ]
        tokenized = [
            (policy.text.encode([{"role": "user", "content": question}]), policy.text.tokens(text))
            for question, text in rows
        ]
        max_prompt = policy.max_length - self.length
        traces = [
            (p, padded(t, self.length, policy.eos_id))
            for p, t in tokenized
            if len(t) <= self.length and len(p) <= max_prompt
        ]
        if len(traces) < len(rows):
            log(
                f"sft: left out {len(rows) - len(traces)} of {len(rows)} traces: a response over"
                f" {self.length} tokens, or a question over {max_prompt}"
            )
        if not traces:
            raise DopsdError(
                f"method.sft.traces: none of {len(rows)} rows has a response of at most"
                f" {self.length} tokens (method.sft.length) and a question of at most {max_prompt}"
                f" (the rest of the model's {policy.max_length}); change method.sft.length or the"
                " rows",
                code=Code.MISFIT,
            )
        return traces

    def collect(self, policy: Policy, problems: list[Problem], update: int) -> Collected:
        """Return one update: a masked solution or trace for each problem."""
        pairs = self._traced(problems, update) if self.traces else self._solved(policy, problems)
        keys = [key_from("sft", self.seed, update, problem.id) for problem in problems]
        batch = masked(policy, [Text(p, c, key) for (p, c), key in zip(pairs, keys, strict=True)])
        counters = {"trajectories": len(pairs), "rollouts": 0, "sampled_tokens": 0}
        return Collected([[batch]], RolloutStats(counters, MetricSums()))

    def _traced(self, problems: Sequence[Problem], update: int) -> list[tuple[Tensor, Tensor]]:
        """Return a trace for each problem.

        Problems come in a new order each epoch, and traces follow the problems, so the order of
        traces changes as well.
        """
        size = len(self.index)
        epoch = update * self.context.prompts_per_collect // size
        return [
            self.traces[(self.index[problem.id] + epoch * size) % len(self.traces)]
            for problem in problems
        ]

    def _solved(self, policy: Policy, problems: Sequence[Problem]) -> list[tuple[Tensor, Tensor]]:
        sampling = self.context.sampling.model_copy(update={"gen_length": self.length})
        texts = self.solutions.of(policy, problems)
        return list(zip(self.context.prompts(problems, sampling), texts, strict=True))

    def loss(self, policy: Policy, batch: MaskedTexts) -> LossOutput:
        """Return the masked-diffusion bound of each row, weighted and summed."""
        losses = masked_diffusion_loss(policy, batch)  # [B]
        sums = metric_sums({"cross_entropy": losses.sum()}, len(batch))
        return LossOutput((losses * batch.weight).sum(), sums)
