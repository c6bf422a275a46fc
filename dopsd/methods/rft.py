"""Rejection fine-tuning: masked-diffusion cross-entropy on the rollouts that d-OPSD would keep.

The control that separates the teacher's share of a gain from the filter's: same sampling, same gate, no teacher.
Loss: LLaDA's fine-tuning bound (arXiv 2502.09992, Eq. 5). The settings are ours.
"""

from __future__ import annotations

import torch

from dopsd.config import Params, Rft
from dopsd.keyed import fold, text_key, uniform
from dopsd.losses import masked_diffusion_loss
from dopsd.sampling import left_pad
from dopsd.scoring import Attempter
from dopsd.types import Batch, Collected, MaskedTexts, Policy, Problem, Rollout, StepLoss, Sums, Task


def build(config: Rft, params: Params, task: Task, policy: Policy, seed: int) -> FineTuneOnKept:
    return FineTuneOnKept(config, Attempter(task, params.sampling, config, params.model.prompt_style, seed))


class FineTuneOnKept:
    """The method: pass@k, keep, predict the kept tokens from random masks."""

    def __init__(self, config: Rft, attempter: Attempter) -> None:
        self.config, self.attempter = config, attempter
        self.counts_failed = config.denominator == "prompts"
        self.collected = Collected({}, Sums())

    def collect(self, policy: Policy, problems: list[Problem], update: int) -> list[list[Batch]]:
        scored = self.attempter.collect(policy, problems, update)
        self.collected = self.attempter.summary(policy, scored)
        kept = [item.best for item in scored if item.is_kept]
        if not kept:
            return [] if self.config.skip_empty else [[]]
        return [[self._masked(policy, kept, update, n)] for n in range(self.config.updates_per_collect)]

    def _masked(self, policy: Policy, kept: list[Rollout], update: int, number: int) -> MaskedTexts:
        """Each kept rollout `draws_per_rollout` times, every token masked with probability t ~ U(0.001, 1)."""
        copies = [(rollout, n) for rollout in kept for n in range(self.config.draws_per_rollout)]
        prompts, real = left_pad([rollout.prompt_ids for rollout, _ in copies], policy.eos_id)  # [B, P]
        targets = torch.stack([rollout.completion_ids for rollout, _ in copies])  # [B, G]
        seed = self.attempter.seed
        keys = [text_key("rft", seed, update, number, r.problem_id, n) for r, n in copies]
        key = torch.tensor(keys, device=targets.device)[:, None]  # [B, 1]
        places = torch.arange(targets.shape[1] + 1, device=targets.device)
        draw = uniform(fold(key, places))  # [B, G+1], the last column is t
        share = draw[:, -1:] * 0.999 + 0.001
        hidden = draw[:, :-1] < share
        ids = torch.cat([prompts, targets.masked_fill(hidden, policy.mask_id)], 1)
        weight = torch.full((len(copies),), 1.0 / self.config.draws_per_rollout, device=targets.device)
        return MaskedTexts(ids, torch.cat([real, torch.ones_like(hidden)], 1), targets, hidden, 1 / share[:, 0], weight)

    def loss(self, policy: Policy, batch: MaskedTexts) -> StepLoss:
        each = masked_diffusion_loss(policy, batch)  # [B]
        sums = Sums()
        sums.add("cross_entropy", each.detach().sum().item(), len(batch))
        return StepLoss((each * batch.weight).sum(), sums)
