"""Distributions over tokens, whole, and as the likeliest ones with all others as one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dopsd.core.tensors import index_of, take

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dopsd.core.types import Rollout
    from dopsd.models.policy import Forward

HEAD_ENTRIES = 2**26  # logits in memory at once; with noise an entry takes 30 bytes
LEAST = -1e4  # ln of a probability of 0: of tokens that cannot be sampled, or where none is left


def sampleable(model: Forward, hidden: Tensor) -> Tensor:
    """Return the logits [N, V] of hidden states [N, D], -inf at tokens that cannot be sampled."""
    logits = model.head(hidden).float()
    return logits.index_fill_(1, index_of(tuple(model.suppress_tokens), logits.device), -torch.inf)


def likeliest(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k likeliest tokens [..., k], with ln p of each and of all others [..., k + 1].

    Args:
        logits: [..., V], -inf at tokens that cannot be sampled.
        k: V at most counts.
    """
    ids = logits.topk(min(k, logits.shape[-1]), -1).indices
    return ids, coarse(logits, ids)


def coarse(logits: Tensor, ids: Tensor) -> Tensor:
    """Return ln p of each of these tokens, and of all others together [..., k + 1].

    Args:
        logits: [..., V], -inf at tokens that cannot be sampled.
        ids: [..., k], all different.
    """
    logps = logits.float().log_softmax(-1)
    others = logps.scatter(-1, ids, LEAST).logsumexp(-1, keepdim=True)
    return torch.cat([logps.gather(-1, ids), others], -1).clamp(min=LEAST)


class KeptCommits:
    """The distributions from which the tokens of a batch of rollouts are committed.

    Args:
        k: likeliest tokens that are kept; 0: none.
    """

    def __init__(self, model: Forward, k: int, shape: Sequence[int]) -> None:
        self.model, self.k, self.shape = model, k, shape
        self.tops: list[Tensor] = []  # [B, W, k] and [B, W, k+1]

    def keep(self, rows: Tensor, columns: Tensor, hidden: Tensor, chosen: Tensor | None) -> None:
        """Keep what a step commits from, hidden states [B, C, D].

        Args:
            chosen: [B, C], False where nothing is committed; None: all are.
        """
        states = hidden.flatten(0, 1).split(max(1, HEAD_ENTRIES // self.model.vocabulary))
        parts = [likeliest(sampleable(self.model, part), self.k) for part in states]
        found = [torch.cat(part) for part in zip(*parts, strict=True)]
        if not self.tops:
            self.tops = [part.new_zeros(*self.shape, part.shape[1]) for part in found]
        index = rows[:, None], columns
        for kept, flat in zip(self.tops, found, strict=True):
            new = flat.view(*columns.shape, -1)
            kept[index] = (
                new if chosen is None else torch.where(chosen[..., None], new, kept[index])
            )

    def given(self, rollouts: list[Rollout], columns: Tensor) -> list[Rollout]:
        """Return rollouts with what was kept at the columns [B, G] of their completions."""
        if not self.tops:
            return rollouts
        tops = [take(part, columns).cpu() for part in self.tops]
        parts = zip(rollouts, *tops, strict=True)
        return [replace(r, top_ids=ids.clone(), top_logps=logps.clone()) for r, ids, logps in parts]
