"""The clipped policy gradient with a penalty on leaving the reference (d1, Eq. 3 and 5)."""

from __future__ import annotations

import torch
from torch import Tensor


def policy_gradient(
    logps: Tensor,
    old_logps: Tensor,
    ref_logps: Tensor,
    advantage: Tensor,
    clip_range: float,
    kl_weight: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Per token: loss, whether its ratio was clipped, and the estimated KL to the reference.
    Log-probabilities [B, G].

    -min(r A, clip(r, 1-e, 1+e) A) + b (exp(ref - logp) - (ref - logp) - 1), r = exp(logp - old)
    (d1, Eq. 3 and 5).
    """
    ratio, ref_log_ratio = (logps - old_logps).exp(), ref_logps - logps
    clipped_ratio = ratio.clamp(1 - clip_range, 1 + clip_range)
    kl = ref_log_ratio.expm1() - ref_log_ratio
    gain = torch.minimum(ratio * advantage, clipped_ratio * advantage)
    return kl_weight * kl - gain, (clipped_ratio * advantage < ratio * advantage).float(), kl
