"""Credit for each token from a teacher that sees part of a verified future (own, unproven)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from dopsd.algorithms.trace_rl.config import TraceRlConfig


def credit_weight(config: TraceRlConfig, update: int, updates: int) -> float:
    """Return l: `credit`, or with `credit_decay` what is left of it at this collect.

    Args:
        config: the settings.
        update: updates of the run before the collect.
        updates: updates of the run.
    """
    done = update / updates if config.credit_decay else 0.0
    return (config.credit or 0.0) * max(0.0, 1.0 - done)


def credited(advantage: Tensor, gap: Tensor, weight: float, width: float) -> Tensor:
    """Return A' = A (1 - l + l w) with w = clip(exp(sign(A) gap), 1 - e, 1 + e).

    Args:
        advantage: A [B], of the rollouts.
        gap: [B, G], ln q(y) - ln p_old(y) of the teacher q; 0 where it is shown nothing.
        weight: l.
        width: e.

    Returns:
        [B, G].
    """
    own = advantage[:, None]
    factor = (own.sign() * gap).exp().clamp(1 - width, 1 + width)
    return own * torch.where(gap == 0, 1.0, 1 - weight + weight * factor)
