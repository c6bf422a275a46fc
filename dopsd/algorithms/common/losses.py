"""Cross-entropies and log-probabilities of masked tokens, from one forward of a policy; metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dopsd.core.metrics import MetricSums
from dopsd.core.tensors import true_positions

if TYPE_CHECKING:
    from dopsd.algorithms.common.batch import MaskedTexts
    from dopsd.models.policy import Policy


def masked_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return -ln p(target) [N] of logits [N, V], in nats (LLaDA, Eq. 3 without the factor 1/t)."""
    return torch.nn.functional.cross_entropy(logits.float(), targets, reduction="none")


def masked_diffusion_loss(policy: Policy, batch: MaskedTexts) -> Tensor:
    """Return the masked-diffusion bound [B] of each row, in nats per token (LLaDA, Eq. 5).

    This is the sum over masked tokens of cross-entropy / t, divided by the length of the
    completion.
    """
    length = batch.targets.shape[1]
    rows, columns = true_positions(batch.on_host("loss_mask"), batch.ids.device)  # [N]
    hidden = policy.masked_hidden(batch.ids, batch.attention_mask(), batch.targets)
    cross_entropy = masked_cross_entropy(
        policy.head(hidden[rows, columns]), batch.targets[rows, columns]
    )
    return (
        torch.zeros_like(batch.weight).index_add(0, rows, cross_entropy)
        * batch.token_weight
        / length
    )


def token_logps(policy: Policy, ids: Tensor, mask: Tensor | None, targets: Tensor) -> Tensor:
    """Return ln p(target) at every position of the completion, in nats.

    Args:
        ids: [B, P+G], with the completion masked.
        mask: [B, P+G], False on padding; None without padding.
        targets: [B, G].

    Returns:
        [B, G].
    """
    hidden = policy.masked_hidden(ids, mask, targets)  # [B, G, D]
    return -masked_cross_entropy(policy.head(hidden).flatten(0, 1), targets.flatten()).view_as(
        targets
    )


def clipped_gain(ratio: Tensor, advantage: Tensor, low: float, high: float) -> Tensor:
    """Return min(r A, clip(r, low, high) A), the gain of PPO (arXiv 1707.06347, Eq. 7).

    Args:
        ratio: r, the probability over that of the policy that sampled.
        advantage: A, broadcasts with `ratio`.
    """
    return torch.minimum(ratio * advantage, ratio.clamp(low, high) * advantage)


def kl_estimate(logps: Tensor, ref_logps: Tensor) -> Tensor:
    """Return exp(d) - d - 1 with d = ref - logp, in nats: an estimate of the KL to a reference.

    It is never negative, and without bias where tokens are sampled from the model
    (http://joschu.net/blog/kl-approx.html, k3).

    Args:
        logps: ln p of sampled tokens under the model in training.
    """
    gap = ref_logps - logps
    return gap.expm1() - gap


def metric_sums(totals: dict[str, Tensor], count: float) -> MetricSums:
    """Return totals over `count` items as metrics, copied from the device at once.

    Args:
        totals: scalars in float32, by the name of the metric.
        count: items that each of them adds up.
    """
    values = torch.stack([total.detach() for total in totals.values()]).tolist()
    return MetricSums({name: (v, float(count)) for name, v in zip(totals, values, strict=True)})


def entropy(logits: Tensor) -> Tensor:
    """Return the entropy [...] of softmax(logits [..., V]), in nats."""
    logp = logits.float().log_softmax(-1)
    return -(logp.exp() * logp).sum(-1)
