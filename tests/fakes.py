"""A policy without weights: its logits are a table of (position, token), so that every choice can
be set by hand.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dopsd.distributed.process_group import SingleProcess, UnevenForwards

if TYPE_CHECKING:
    from dopsd.distributed.process_group import ProcessGroup
    from dopsd.models.kv_cache import KVCache
    from dopsd.models.policy import Alignment, Attention, Policy, Text

MASK, EOS = 9, 8


class FakeText:
    """Digits as token ids."""

    end_of_turn = ""

    def encode(self, messages: list[dict[str, str]], prefill: str = "") -> Tensor:
        return self.tokens(messages[-1]["content"] + prefill)

    def tokens(self, text: str) -> Tensor:
        return torch.tensor([int(c) for c in text])

    def decode(self, ids: Tensor, after_eos: bool = False, special: bool = True) -> str:
        return "".join(self.pieces(ids))

    def pieces(self, ids: Tensor) -> list[str]:
        return [str(int(i)) for i in ids]


class FakePolicy:
    """Hidden states are one-hot positions of the completion; the head reads the table's row of that
    position.
    """

    def __init__(self, length: int = 8, vocabulary: int = 10, table: Tensor | None = None) -> None:
        self.mask_id, self.eos_id, self.suppress_tokens = MASK, EOS, [MASK]
        self.length, self.vocabulary, self.max_length = length, vocabulary, 1000
        self.table = torch.zeros(length, vocabulary) if table is None else table
        self.seen: list[Tensor] = []
        self.process_group: ProcessGroup = SingleProcess()
        self.device, self.needs_lockstep = torch.device("cpu"), False
        self.rows_that_fit: dict[int, int] = {}
        self.forwards = UnevenForwards()
        self.head_rows = self.releases = 0
        self.text: Text = FakeText()
        self.attention_pattern: Attention = "bidirectional"
        self.block_size: int | None = None
        self.block_alignment: Alignment = "completion"

    def release_memory(self) -> None:
        self.releases += 1

    def hidden(
        self,
        ids: Tensor,
        attention_mask: Tensor | None,
        kv_cache: KVCache | None = None,
        cache_positions: slice | None = None,
    ) -> Tensor:
        self.seen.append(ids.clone())
        places = torch.eye(self.length)
        prompt = torch.zeros(ids.shape[1] - self.length, self.length)
        return torch.cat([prompt, places]).expand(len(ids), -1, -1)

    def masked_hidden(self, ids: Tensor, attention_mask: Tensor | None, clean: Tensor) -> Tensor:
        return self.hidden(ids, attention_mask)[:, -clean.shape[1] :]

    def head(self, hidden: Tensor) -> Tensor:
        self.head_rows += hidden.shape[:-1].numel()
        return hidden @ self.table

    def teacher(self) -> nullcontext[None]:
        return nullcontext()

    def reference(self) -> nullcontext[None]:
        return nullcontext()

    def new_kv_cache(self) -> KVCache:
        raise NotImplementedError("a table has no keys to keep")

    def use_teacher(
        self, kind: str, ema_decay: float, dropout: bool = False, attention: str = "base"
    ) -> None:
        """The table is its own teacher."""

    def after_update(self) -> None: ...

    def trainable(self) -> dict[str, Tensor]:
        return {}


if TYPE_CHECKING:
    FITS: Policy = FakePolicy()  # the fake implements the protocol
