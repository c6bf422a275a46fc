"""The objectives of ESPO, GDSD and coupled-GRPO on one estimate of log-probabilities."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from dopsd.algorithms.common.losses import clipped_gain, kl_estimate

if TYPE_CHECKING:
    from torch import Tensor

    from dopsd.algorithms.espo.batch import CoupledViews
    from dopsd.algorithms.espo.config import EspoConfig


class Terms(NamedTuple):
    """Terms of the loss of each completion, [B]; with objective `token` summed over its tokens."""

    loss: Tensor  # without the KL penalty
    kl: Tensor  # estimated KL to the initial policy, nats per token
    clipped: Tensor  # share where the clip takes effect
    logp: Tensor  # estimated ln p per token, nats


def sequence_logps(logps: Tensor, view_weight: Tensor) -> Tensor:
    """Return half the weighted sum of ln p over a mask and its complement (ESPO, section 4).

    With the weights of the bound it is an estimate of the bound of ln p(completion).

    Args:
        logps: [B, 2n, G], 0 where no token is predicted.
        view_weight: [B, 2n].

    Returns:
        [B, n], in nats.
    """
    pairs: Tensor = (logps.sum(-1) * view_weight).unflatten(1, (-1, 2))  # [B, n, 2]
    return pairs.sum(-1) / 2


def token_estimates(logps: Tensor, view_weight: Tensor) -> Tensor:
    """Return the weighted ln p of each token, mean over pairs, [B, G].

    With a full mask after the pairs it is the mean of both (coupled-GRPO's published code).

    Args:
        logps: [B, N, G], 0 where no token is predicted.
        view_weight: [B, N].
    """
    weighted, pairs = logps * view_weight[..., None], logps.shape[1] // 2
    coupled = weighted[:, : 2 * pairs].sum(1) / pairs
    return (coupled + weighted[:, -1]) / 2 if logps.shape[1] % 2 else coupled


def ratio_terms(config: EspoConfig, batch: CoupledViews, logps: Tensor) -> Terms:
    """Return the terms of ESPO: the ratio of a completion is exp((E - E_old) / L).

    -min(r A, clip(r, 1-e, 1+e) A), and (E - E_ref)^2 / (2 L) as the KL.

    Args:
        config: the clip.
        batch: B completions.
        logps: [B, N, G], ln p under the model in training.
    """
    now, old, ref = (
        sequence_logps(values, batch.view_weight).mean(1)
        for values in (logps, batch.old_logps, batch.ref_logps)
    )
    length, epsilon = batch.length, config.clip_range
    ratio = ((now - old) / length).exp()
    gain = clipped_gain(ratio, batch.advantage, 1 - epsilon, 1 + epsilon)
    clipped = (gain < ratio * batch.advantage).float()
    return Terms(-gain, (now - ref).square() / (2 * length), clipped, now / length)


def squared_terms(config: EspoConfig, batch: CoupledViews, logps: Tensor) -> Terms:
    """Return the terms of GDSD: the change of ln p per token is drawn towards psi A.

    (clamp(D - D_old) / L - psi A)^2, summed over draws as in the published code; clamped to
    ln(1 -+ e).

    Args:
        config: the clamp, and psi.
        batch: B completions.
        logps: [B, N, G], ln p under the model in training.
    """
    now, old, ref = (
        sequence_logps(values, batch.view_weight)
        for values in (logps, batch.old_logps, batch.ref_logps)
    )
    length, epsilon = batch.length[:, None], config.clip_range
    before, after = (length, 1) if config.clamp_on == "mean" else (1, length)
    change = (now - old) / before
    clamped = change.clamp(math.log1p(-epsilon), math.log1p(epsilon))
    error = clamped / after - config.psi * batch.advantage[:, None]
    kl = (now - ref).square() / (2 * length)
    clipped = (clamped != change).float()
    return Terms(error.square().sum(1), kl.mean(1), clipped.mean(1), (now / length).mean(1))


def token_terms(config: EspoConfig, batch: CoupledViews, logps: Tensor) -> Terms:
    """Return the terms of coupled-GRPO, summed over tokens: each token has a ratio of its own.

    Args:
        config: the clip.
        batch: B completions.
        logps: [B, N, G], ln p under the model in training.
    """
    now, old, ref = (
        token_estimates(values, batch.view_weight)
        for values in (logps, batch.old_logps, batch.ref_logps)
    )
    ratio, advantage, epsilon = (now - old).exp(), batch.advantage[:, None], config.clip_range
    gain = clipped_gain(ratio, advantage, 1 - epsilon, 1 + epsilon)
    terms = (-gain, kl_estimate(now, ref), (gain < ratio * advantage).float(), now)
    return Terms(*((term * batch.counted).sum(1) for term in terms))


TERMS = {"ratio": ratio_terms, "squared": squared_terms, "token": token_terms}
