"""The weight of each completion in its group (wd1, arXiv 2507.08838; the published code)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence


def group_weights(advantages: Sequence[float]) -> list[float]:
    """Return softmax(A) - softmax(-A), the weight of each ln p in the gain of its group.

    Args:
        advantages: A, of all completions of a problem.

    Returns:
        A weight for each, which add up to 0; all exactly 0 if the advantages are equal.
    """
    compared = torch.tensor(advantages, dtype=torch.float64)
    weights: list[float] = (compared.softmax(0) - (-compared).softmax(0)).tolist()
    return weights
