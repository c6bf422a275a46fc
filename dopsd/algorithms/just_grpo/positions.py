"""Positions of completions, each to be predicted from the tokens before it, and their logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from dopsd.algorithms.common.batch import Batch
from dopsd.algorithms.common.views import Completions
from dopsd.core.tensors import true_positions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dopsd.algorithms.common.groups import Rewarded
    from dopsd.models.policy import Policy

AT_ONCE = 8  # positions of a row: more make rows that memory may not hold, fewer copy rollouts


@dataclass(frozen=True)
class Positions(Batch):
    """Rollouts, each with some positions of its completion to predict."""

    ids: Tensor  # [B, P+G], without masks
    mask: Tensor  # [B, P+G], False on padding
    order: Tensor  # [B, G], step that committed each token, from left to right without a threshold
    positions: Tensor  # [B, C], in the completion; -1: none
    advantage: Tensor  # [B], of the rollout
    weight: Tensor  # [B], the row's share of its rollout's positions

    @property
    def forwards(self) -> int:
        """Sequences in the forward passes of one row: C at most."""
        return self.positions.shape[1]

    @property
    def padded_length(self) -> int:
        """Tokens of a sequence: P + G."""
        return self.ids.shape[1]


def batch_of(
    policy: Policy, rewarded: Sequence[Rewarded], places: Sequence[Tensor], at_once: int
) -> Positions:
    """Return rows of at most `at_once` positions, in main memory.

    Args:
        policy: the model, for its special tokens.
        rewarded: the rollouts with their advantages.
        places: positions of each completion, in order.
        at_once: C.

    Returns:
        The rows; those of rollouts without places are left out.
    """
    texts = Completions.of(policy, [item.rollout for item in rewarded])
    chunks = [(i, c) for i, part in enumerate(places) for c in part.split(at_once) if len(c)]
    rows = torch.tensor([i for i, _ in chunks], dtype=torch.long)
    positions = torch.full((len(chunks), at_once), -1)
    for row, (_, chunk) in zip(positions, chunks, strict=True):
        row[: len(chunk)] = chunk
    return Positions(
        torch.cat([texts.prompts, texts.targets], 1)[rows],
        texts.mask[rows],
        torch.stack([item.rollout.revealed_at for item in rewarded])[rows],
        positions,
        torch.tensor([item.advantage for item in rewarded])[rows],
        torch.tensor([len(chunk) / len(places[i]) for i, chunk in chunks]),
    )


class Scored(NamedTuple):
    """N positions that are predicted, from left to right in each row."""

    rows: Tensor  # [N]
    targets: Tensor  # [N]
    logits: Tensor  # [N, V]


def position_logits(policy: Policy, batch: Positions, length: int) -> Scored:
    """Return the logits of each position, masked with all committed later: a forward each.

    Args:
        policy: the model.
        batch: rows with positions.
        length: G.
    """
    rows, columns = true_positions(batch.on_host("positions") >= 0, batch.ids.device)  # [N]
    places, ids = batch.positions[rows, columns], batch.ids[rows]  # [N], [N, P+G]
    completion, order = ids[:, -length:], batch.order[rows]  # [N, G]
    each = torch.arange(len(rows), device=ids.device)
    targets = completion[each, places]
    completion.masked_fill_(order >= order[each, places, None], policy.mask_id)
    mask = batch.attention_mask()
    hidden = policy.hidden(ids, None if mask is None else mask[rows])[:, -length:]  # [N, G, D]
    return Scored(rows, targets, policy.head(hidden[each, places]))
