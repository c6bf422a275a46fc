"""How well texts that are held out are predicted while SFT goes on, and a sample."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dopsd.algorithms.common.losses import masked_diffusion_loss
from dopsd.algorithms.common.masking import MaskedText, masked
from dopsd.algorithms.sft.config import RATIOS
from dopsd.core.metrics import MetricSums
from dopsd.core.progress import log
from dopsd.core.rng import key_from
from dopsd.rollout.engine import sampler_of
from dopsd.rollout.prompts import decoding
from dopsd.rollout.sampler import GenerationRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from dopsd.algorithms.common.base import AlgorithmContext
    from dopsd.models.policy import Policy

SHOWN = 300  # characters of a sample


class HeldOut:
    """Texts that are not learnt, masked alike each time.

    Args:
        shown: a prompt with its response, of which an answer is logged; or none.
    """

    def __init__(
        self,
        context: AlgorithmContext,
        pairs: Sequence[tuple[Tensor, Tensor]],
        shown: Sequence[tuple[Tensor, Tensor]],
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
