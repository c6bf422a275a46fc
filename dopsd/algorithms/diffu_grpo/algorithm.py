"""diffu-GRPO: policy gradient with group-relative advantages, for masked diffusion models.

d1 (arXiv 2504.12216), section 3.2 and Algorithm 1; the defaults are its published settings.
Log-probabilities come from one forward of a fully masked completion. The advantage is the reward
less the group's mean, undivided (the published code turns scale_rewards off).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dopsd.algorithms.common.base import AlgorithmContext, LossOutput
from dopsd.algorithms.common.batch import GroupBatch
from dopsd.algorithms.common.groups import GroupMethod, Rewarded, group_collector
from dopsd.algorithms.common.losses import clipped_gain, kl_estimate, metric_sums, token_logps
from dopsd.algorithms.common.views import Completions, rollout_keys

if TYPE_CHECKING:
    from dopsd.algorithms.diffu_grpo.config import DiffuGrpoConfig
    from dopsd.models.policy import Policy


def build(config: DiffuGrpoConfig, context: AlgorithmContext) -> DiffuGrpo:
    """Return the algorithm with its settings and the run's context."""
    return DiffuGrpo(config, group_collector(config, context), context.sequences_at_once)


class DiffuGrpo(GroupMethod):
    """Compare rewards within groups of rollouts, and make several updates per collect."""

    config: DiffuGrpoConfig
    normalize_by_all_prompts = False  # weights are token counts; advantages are in the batch

    def batch(
        self, policy: Policy, taught: Sequence[Rewarded], collect: int, iteration: int
    ) -> GroupBatch:
        """Mask completions fully, and prompt tokens with probability `prompt_mask`.

        The log-probabilities are those under the current and the initial policy.
        """
        rollouts = [item.rollout for item in taught]
        texts, seed = Completions.of(policy, rollouts), self.collector.seed
        keys = rollout_keys(rollouts, "diffu_grpo", seed, collect, iteration)
        prompts = texts.masked_prompts(keys, self.config.prompt_mask, policy.mask_id)
        targets, completion_mask = texts.targets, texts.completion_mask
        ids = torch.cat([prompts, torch.full_like(targets, policy.mask_id)], 1)
        batch = GroupBatch(
            ids,
            texts.mask,
            targets,
            completion_mask,
            torch.tensor([item.advantage for item in taught]),
            torch.zeros(targets.shape),
            torch.zeros(targets.shape),
            completion_mask.sum(1).float(),
        ).to(policy.device)
        old_logps = self._logps(policy, batch)
        with policy.reference():
            ref_logps = self._logps(policy, batch)
        return batch.with_tensors(old_logps=old_logps, ref_logps=ref_logps)

    def _logps(self, policy: Policy, batch: GroupBatch) -> Tensor:
        """Return ln p of the targets [B, G]."""
        parts = batch.split(self.collector.sampling.batch_size)
        with torch.no_grad():
            return torch.cat([_token_logps(policy, part) for part in parts])

    def loss(self, policy: Policy, batch: GroupBatch) -> LossOutput:
        """Return the clipped policy-gradient loss with a KL penalty, summed over tokens."""
        logps = _token_logps(policy, batch)  # [B, G]
        c = self.config
        token_losses, clipped, kl = policy_gradient(
            logps,
            batch.old_logps,
            batch.ref_logps,
            batch.advantage[:, None],
            c.clip_range,
            c.kl_weight,
        )
        completion_mask, tokens = batch.completion_mask, batch.on_host("completion_mask").sum()
        figures = {"kl": kl, "clip_ratio": clipped, "logp": logps}
        totals = {name: (value * completion_mask).sum() for name, value in figures.items()}
        sums = metric_sums(totals, tokens.item())
        return LossOutput((token_losses * completion_mask).sum(), sums)


def _token_logps(policy: Policy, batch: GroupBatch) -> Tensor:
    return token_logps(policy, batch.ids, batch.attention_mask(), batch.targets)


def policy_gradient(
    logps: Tensor,
    old_logps: Tensor,
    ref_logps: Tensor,
    advantage: Tensor,
    clip_range: float,
    kl_weight: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss of each token (d1, Eq. 3 and 5).

    -min(r A, clip(r, 1-e, 1+e) A) + b (exp(ref - logp) - (ref - logp) - 1), with r = exp(logp -
    old).

    Args:
        logps: [B, G], ln p of the targets under the model in training.
        old_logps: [B, G], under the policy that sampled them.
        ref_logps: [B, G], under the initial policy.
        advantage: A, [B, 1].
        clip_range: e.
        kl_weight: b.

    Returns:
        The loss, 1 where the ratio was clipped, and the estimated KL to the reference in nats, each
        [B, G].
    """
    ratio, kl = (logps - old_logps).exp(), kl_estimate(logps, ref_logps)
    gain = clipped_gain(ratio, advantage, 1 - clip_range, 1 + clip_range)
    return kl_weight * kl - gain, (gain < ratio * advantage).float(), kl
