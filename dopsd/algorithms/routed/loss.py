"""What routed adds to the policy gradient: a bounded divergence, and an anchor (own)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch

from dopsd.algorithms.common.divergence import Divergence, entropy, shared_mass

if TYPE_CHECKING:
    from torch import Tensor

    from dopsd.algorithms.routed.config import RoutedConfig


class Lesson(NamedTuple):
    """The divergence at N positions, and figures of it."""

    loss: Tensor  # [N], bounded and weighted
    divergence: Tensor  # [N], before that
    scaled: Tensor  # [N], 1 where the clip scales a position down
    shared_mass: Tensor  # [N]


def strength(config: RoutedConfig, update: int, updates: int) -> float:
    """Return beta at a collect: it rises from 0, and with `distil_decay` falls to 0.

    Args:
        config: the settings.
        update: updates of the run before the collect.
        updates: updates of the run.
    """
    rise = config.distil_warmup * updates
    beta = config.distil_weight * (min(1.0, (update + 1) / rise) if rise else 1.0)
    if config.distil_decay and updates > rise:
        beta *= max(0.0, 1.0 - max(0.0, update - rise) / (updates - rise))
    return beta


def lesson(student: Tensor, teacher: Tensor, config: RoutedConfig) -> Lesson:
    """Return g D(p, q) at each position, g = min(1, clip / D) without gradients.

    With `by_confidence` a position also weighs exp(-H(q) / ln V).

    Args:
        student: logits [N, V].
        teacher: logits [N, V].
        config: divergence, clip and by_confidence.
    """
    measure = Divergence(config.divergence, clip=config.clip, is_by_position=True)
    value, unclipped, scaled = measure(student, teacher)
    if config.by_confidence:
        value = value * (-entropy(teacher) / math.log(teacher.shape[-1])).exp()
    return Lesson(value, unclipped.detach(), scaled, shared_mass(student.detach(), teacher))


def anchor(logps: Tensor, base_logps: Tensor, loss_mask: Tensor) -> Tensor:
    """Return the mean of (ln p / p_base)^2 / 2 over the predicted tokens of each state [B].

    Args:
        logps: [B, G], ln p of the targets, 0 where nothing is predicted.
        base_logps: [B, G], the same under the initial policy.
        loss_mask: [B, G].
    """
    return (torch.square(logps - base_logps) / 2).sum(1) / loss_mask.sum(1)
