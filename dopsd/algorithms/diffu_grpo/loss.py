"""The clipped policy gradient with a KL penalty to a reference (d1, Eq. 3 and 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dopsd.algorithms.common.losses import clipped_gain, kl_estimate

if TYPE_CHECKING:
    from torch import Tensor


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
