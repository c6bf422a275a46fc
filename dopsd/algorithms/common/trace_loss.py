"""The clipped policy gradient of a state, with a KL penalty (TraceRL, arXiv 2509.06949)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dopsd.algorithms.common.losses import clipped_gain, kl_estimate

if TYPE_CHECKING:
    from torch import Tensor

    from dopsd.algorithms.common.trace_config import TraceConfig
    from dopsd.algorithms.common.trace_states import Trace


class StateLosses(NamedTuple):
    """The loss of each state, and what its predicted tokens add up to."""

    losses: Tensor  # [B]
    kl: Tensor  # [B, G], estimated KL in nats, 0 where nothing is predicted
    clipped: Tensor  # [B, G], 1 where the clip lowers the gain


def state_losses(logps: Tensor, batch: Trace, config: TraceConfig) -> StateLosses:
    """Return -mean min(r A, clip(r, 1-e, 1+e) A) + b KL over the predicted tokens of each state.

    r = exp(logp - old), KL is the sum or the mean of exp(ref - logp) - (ref - logp) - 1.

    Args:
        logps: [B, G], ln p of the targets, 0 where nothing is predicted.
        batch: the states; their earlier log-probabilities are 0 there too.
        config: clip_range, kl_weight and kl_reduction.
    """
    ratio, advantage = (logps - batch.old_logps).exp(), batch.advantage
    if advantage.dim() == 1:  # of the rollout
        advantage = advantage[:, None]
    gain = clipped_gain(ratio, advantage, 1 - config.clip_range, 1 + config.clip_range)
    kl, count = kl_estimate(logps, batch.ref_logps), batch.loss_mask.sum(1)
    penalty = kl.sum(1) if config.kl_reduction == "sum" else kl.sum(1) / count
    losses = config.kl_weight * penalty - (gain * batch.loss_mask).sum(1) / count
    return StateLosses(losses, kl, (gain < ratio * advantage).float())
