"""Supervised fine-tuning by masked diffusion on solutions.

d1 (arXiv 2504.12216), section 3.1; LLaDA, Eq. 5. Solutions are the task's own references, or rows
of `traces`. The model also learns the padding, which is end of text, unless `padding` is ignore.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dopsd.algorithms.common.base import AlgorithmContext, Collected, LossOutput
from dopsd.algorithms.common.batch import MaskedTexts
from dopsd.algorithms.common.chats import tokens_of
from dopsd.algorithms.common.losses import masked_diffusion_loss, metric_sums
from dopsd.algorithms.common.masking import MaskedText, masked
from dopsd.algorithms.common.solutions import Solutions, padded
from dopsd.algorithms.sft.config import MOST, RATIOS
from dopsd.core.errors import Code
from dopsd.core.metrics import MetricSums
from dopsd.core.progress import log
from dopsd.core.rng import key_from
from dopsd.core.types import Problem
from dopsd.rollout.collector import RolloutStats
from dopsd.rollout.engine import sampler_of
from dopsd.rollout.prompts import decoding
from dopsd.rollout.sampler import GenerationRequest
from dopsd.tasks.common.sources import each, read_rows

if TYPE_CHECKING:
    from dopsd.algorithms.sft.config import SftConfig
    from dopsd.models.policy import Policy
    from dopsd.tasks.common.config import Source

Pair = tuple[Tensor, Tensor]  # prompt [P] and what is learnt after it [L]
SHARE = 20  # of the traces one is held out, if they are looked at
SHOWN = 300  # characters of a sample


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
        self.index = {problem.id: i for i, problem in enumerate(context.task.load("train"))}
        read = self._read(context.policy, config.traces) if config.traces else []
        self.held_out, every = None, config.held_out_every
        if every and len(read) > 1:
            count = min(MOST, max(1, len(read) // SHARE))
            self.held_out = HeldOut(context, [self.pair(*pair) for pair in read[:count]], read[:1])
            read = read[count:]
        elif every and not read:
            problems = context.task.load("validation")[:MOST]
            solved = self.solved(context.policy, problems, "validation")
            self.held_out = HeldOut(context, [self.pair(*pair) for pair in solved], solved[:1])
        self.traces = [self.pair(*pair) for pair in read]

    def _read(self, policy: Policy, source: Source) -> list[Pair]:
        """Return prompts and responses of traces; those that are too long are left out."""
        read = read_rows(source, "method.sft.traces")
        rows = [pair for _, pair in each(read, lambda row: tokens_of(row, policy.text))]
        max_prompt = policy.max_length - self.length
        traces = [(p, t) for p, t in rows if len(t) <= self.length and len(p) <= max_prompt]
        if len(traces) < len(rows):
            log(
                f"sft: left out {len(rows) - len(traces)} of {len(rows)} traces: a response over"
                f" {self.length} tokens, or a question over {max_prompt}"
            )
        if not traces:
            raise Code.MISFIT.error(
                f"method.sft.traces or adapt.learn.traces: none of {len(rows)} rows has a response"
                f" of at most {self.length} tokens"
                f" and a question of at most {max_prompt} (the rest of the model's"
                f" {policy.max_length}); change the rows or method.sft.length, for `dopsd adapt`"
                " adapt.learn.length"
            )
        return traces

    def pair(self, prompt: Tensor, response: Tensor) -> Pair:
        """Return what stays and what is learnt of a prompt [P] and a response [n].

        With `predict: all` only the first token stays: nothing predicts it under a shifted output.
        """
        learns_padding = self.config.padding == "learn"
        length = self.length if learns_padding else min(len(response) + 1, self.length)
        response = padded(response, length, self.context.policy.eos_id)
        if self.config.predict == "all":
            return prompt[:1], torch.cat([prompt[1:], response])
        return prompt, response

    def collect(self, policy: Policy, problems: list[Problem], collect: int) -> Collected:
        """Return one update: a masked solution or trace for each problem."""
        pairs = self._traced(problems, collect) if self.traces else self._taught(policy, problems)
        keys = [key_from("sft", self.seed, collect, problem.id) for problem in problems]
        texts = [MaskedText(p, c, key) for (p, c), key in zip(pairs, keys, strict=True)]
        batches = [masked(policy, some) for some in self._buckets(texts)]
        counters = {"trajectories": len(pairs), "rollouts": 0, "sampled_tokens": 0}
        stats = RolloutStats(counters, MetricSums())
        is_last = self.context.made.updates == self.context.updates - 1
        if self.held_out and (is_last or collect % (self.config.held_out_every or 1) == 0):
            stats.metrics.merge(self.held_out.measure(policy, collect))
        return Collected([batches], stats)

    def _buckets(self, texts: list[MaskedText]) -> list[list[MaskedText]]:
        """Return texts of about one length together, as many as fit into memory at once."""
        if self.config.padding == "learn" and self.config.predict == "response":
            return [texts]
        size = self.context.sequences_at_once
        by_length = sorted(texts, key=lambda text: len(text.completion))
        return [by_length[start : start + size] for start in range(0, len(texts), size)]

    def _traced(self, problems: Sequence[Problem], collect: int) -> list[Pair]:
        """Return a trace for each problem.

        Problems come in a new order each epoch, and traces follow the problems, so the order of
        traces changes as well.
        """
        size = len(self.index)
        epoch = collect * self.context.prompts_per_collect // size
        return [
            self.traces[(self.index[problem.id] + epoch * size) % len(self.traces)]
            for problem in problems
        ]

    def _taught(self, policy: Policy, problems: Sequence[Problem]) -> list[Pair]:
        return [self.pair(*pair) for pair in self.solved(policy, problems, "train")]

    def solved(self, policy: Policy, problems: Sequence[Problem], split: str) -> list[Pair]:
        """Return the prompts of problems with their solutions, neither cut nor padded."""
        sampling = self.context.sampling.model_copy(update={"gen_length": self.length})
        prompts = self.context.prompts(problems, sampling, split)
        return list(zip(prompts, self.solutions.tokens(policy, problems), strict=True))

    def loss(self, policy: Policy, batch: MaskedTexts) -> LossOutput:
        """Return the masked-diffusion bound of each row, weighted and summed."""
        losses = masked_diffusion_loss(policy, batch)  # [B]
        sums = metric_sums({"cross_entropy": losses.sum()}, len(batch))
        return LossOutput((losses * batch.weight).sum(), sums)


class HeldOut:
    """Texts that are not learnt, masked alike each time."""

    def __init__(
        self, context: AlgorithmContext, pairs: Sequence[Pair], shown: Sequence[Pair]
    ) -> None:
        self.context, self.shown = context, shown
        keys = [key_from("held_out", i) for i in range(len(pairs))]
        self.texts = [MaskedText(p, c, key) for (p, c), key in zip(pairs, keys, strict=True)]

    @torch.no_grad()
    def measure(self, policy: Policy, collect: int) -> MetricSums:
        """Return the loss at each share of masks, over this rank's texts; log one answer."""
        group, size, found = policy.process_group, self.context.sequences_at_once, MetricSums()
        mine = self.texts[group.rank :: group.size]
        log(f"sft: update {collect}: looking at texts that are not learnt: {len(self.texts)}")
        for name, ratio in RATIOS.items():
            total = 0.0
            for start in range(0, len(mine), size):
                some = mine[start : start + size]
                losses = masked_diffusion_loss(policy, masked(policy, some, ratio, ratio))
                found.add(f"held_out_{name}", losses.sum().item(), len(some))
                total += losses.sum().item()
            which = "their loss" if group.size == 1 else f"the loss of {len(mine)} of them"
            mean = total / max(1, len(mine))
            log(f"sft: {which} with {ratio} of the tokens masked: {mean:.2f}")
        if group.rank == 0 and self.shown:
            log(f"sft: an answer: {self.sample(policy) or '(empty)'}")
        return found

    def sample(self, policy: Policy) -> str:
        """Return the greedy answer to the first prompt, as one line."""
        ((prompt, _),) = self.shown
        how = decoding(self.context.sampling)
        (rollout,) = sampler_of(how)(policy, [GenerationRequest("", 0, prompt, 0)], how)
        return " ".join(policy.text.decode(rollout.completion_ids).split())[:SHOWN]
