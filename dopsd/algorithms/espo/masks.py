"""Pairs of complementary masks, whose shares of masked tokens are spread over each group.

The pairs are those of coupled-GRPO (arXiv 2506.20639, section 4), the spread that of ESPO's
published code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dopsd.algorithms.common.views import random_ranks
from dopsd.core.rng import fold_in, uniform

if TYPE_CHECKING:
    from dopsd.algorithms.espo.config import EspoConfig

LEAST, MOST = 0.2, 0.8  # shares of masked tokens with `masks: share`


@dataclass(frozen=True)
class Draw:
    """What masks are drawn from.

    Attributes:
        group_keys: [B], the same for all completions of a problem.
        keys: [B], one for each completion.
        attempts: [B], index of the completion in its group.
        group_size: completions of a group.
    """

    group_keys: Tensor
    keys: Tensor
    attempts: Tensor
    group_size: int


def coupled_masks(config: EspoConfig, draw: Draw, eligible: Tensor) -> tuple[Tensor, Tensor]:
    """Mask some of the eligible tokens of each completion, then all others of them.

    Args:
        config: number and kind of masks.
        draw: random keys of B completions.
        eligible: [B, G], tokens that may be shown; all others are always masked.

    Returns:
        The masks [B, N, G], a mask and its complement for each draw and last the full mask if the
        settings want it, and the weight of ln p at the masked eligible tokens of each [B, N].
    """
    draws = torch.arange(config.draws)
    spread = uniform(fold_in(draw.group_keys[:, None], draws))  # [B, n]
    keys = fold_in(draw.keys[:, None], draws)[..., None]  # [B, n, 1]
    places = uniform(fold_in(keys, torch.arange(eligible.shape[1])))  # [B, n, G]
    if config.masks == "share":
        share = LEAST + (MOST - LEAST) * spread
        first, rest = places < share[..., None], 1 - share
    else:
        length = eligible.sum(1)[:, None]  # [B, 1]
        count = masked_counts(spread, draw.attempts, draw.group_size, length)
        first = random_ranks(places, eligible[:, None]) < count[..., None]
        share, rest = count / (length + 1), (length - count) / (length + 1)
    pairs = torch.stack([first, ~first], 2).flatten(1, 2)  # [B, 2n, G]
    shares = torch.stack([share, rest], 2).flatten(1, 2)  # [B, 2n]; 0 where nothing is masked
    weight = torch.where(shares > 0, 1 / shares, 0.0)
    weight = weight if config.token_weight == "bound" else torch.ones_like(weight)
    if config.full_mask:
        pairs = torch.cat([pairs, torch.ones_like(pairs[:, :1])], 1)
        weight = torch.cat([weight, torch.ones_like(weight[:, :1])], 1)
    return pairs | ~eligible[:, None], weight.float()


def masked_counts(spread: Tensor, attempts: Tensor, group_size: int, length: Tensor) -> Tensor:
    """Return how many tokens to mask: equally far apart in each group, but for rounding.

    This is l_j = round(k + j (L + 1) / b) mod (L + 1), where k ~ U{0..L} is drawn for each group
    and draw. Each number of 0 to L comes as often, except where j (L + 1) / b ends in a half: round
    half to even then gives every second number, twice as often (L = 256, b = 6: j = 3).

    Args:
        spread: [B, n], uniform numbers of n draws, the same for all completions of a group.
        attempts: j, [B], index of the completion in its group.
        group_size: b.
        length: L, [B, 1].

    Returns:
        l, [B, n].
    """
    first = (spread.double() * (length + 1)).long()  # k
    step = (attempts[:, None] * (length + 1)).double() / group_size
    return (first + step).round().long() % (length + 1)
