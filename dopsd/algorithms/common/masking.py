"""Random masks over completions, for methods that learn to predict masked tokens.

LLaDA, arXiv 2502.09992, Eq. 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

from dopsd.algorithms.common.batch import MaskedTexts
from dopsd.core.rng import fold_in, uniform
from dopsd.core.tensors import left_pad

if TYPE_CHECKING:
    from dopsd.models.policy import Policy

LEAST = 0.001  # smallest share of masked tokens; the bound's weight is the inverse of the share


@dataclass(frozen=True)
class MaskedText:
    """A text to mask."""

    prompt: Tensor  # [P]
    completion: Tensor  # [L], without masks; L may differ between the texts of a batch
    key: int  # key of the mask
    weight: float = 1.0  # weight in the update


def masked(
    policy: Policy, texts: Sequence[MaskedText], least: float = LEAST, most: float = 1.0
) -> MaskedTexts:
    """Mask every token of each completion with probability t ~ U(least, most), and weight it 1/t.

    G is the longest completion, in whole blocks of the model; shorter
    ones are padded on the right, where no token sees them. A token's weight is also multiplied by
    G / (tokens of the completion), as the loss divides by G.
    """
    prompts, prompt_mask = left_pad([text.prompt for text in texts], policy.eos_id)  # [B, P]
    lengths = torch.tensor([len(text.completion) for text in texts])[:, None]  # [B, 1]
    length = int(lengths.max())
    length += -length % (policy.block_size or 1)
    padding = [(0, length - len(text.completion)) for text in texts]
    padded = [
        pad(t.completion, p, value=policy.eos_id) for t, p in zip(texts, padding, strict=True)
    ]
    targets = torch.stack(padded)  # [B, G]
    key = torch.tensor([text.key for text in texts])[:, None]  # [B, 1]
    # [B, G+1], the column after a text's last token is its t
    draw = uniform(fold_in(key, torch.arange(length + 1)))
    mask_ratio = draw.gather(1, lengths) * (most - least) + least
    positions = torch.arange(length)
    loss_mask = (draw[:, :-1] < mask_ratio) & (positions < lengths)
    hidden = loss_mask | (positions >= lengths)
    ids = torch.cat([prompts, targets.masked_fill(hidden, policy.mask_id)], 1)
    batch = MaskedTexts(
        ids,
        torch.cat([prompt_mask, positions < lengths], 1),
        targets,
        loss_mask,
        (1 / mask_ratio * (length / lengths))[:, 0],
        torch.tensor([text.weight for text in texts]),
    )
    return batch.to(policy.device)
