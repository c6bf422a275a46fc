"""Protocols of a masked diffusion language model: Forward, Teachers, Text, and all as Policy.

Code asks for the narrowest protocol that it needs: a sampler takes a Forward, a prompt set a Text,
an algorithm a Policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from dopsd.distributed.process_group import ProcessGroup, UnevenForwards
    from dopsd.models.kv_cache import KVCache

Attention = Literal["bidirectional", "block_causal"]
Alignment = Literal["sequence", "completion"]


class Forward(Protocol):
    """The model as a trunk and a head, with its special tokens.

    Whatever the architecture, position i of `hidden` predicts token i: an output shift is undone
    below this protocol.
    """

    mask_id: int  # id of the mask
    eos_id: int  # id that ends a text, and fills padding
    vocabulary: int  # V, entries of the head
    max_length: int  # tokens of prompt and completion that the model was trained for

    @property
    def attention_pattern(self) -> Attention:
        """Which tokens see which."""
        ...

    @property
    def block_size(self) -> int | None:
        """Tokens of a block of block-causal attention; None: each token sees every other."""
        ...

    @property
    def block_alignment(self) -> Alignment:
        """Where those blocks are counted from: the start of the sequence, or of the completion."""
        ...

    @property
    def suppress_tokens(self) -> Sequence[int]:
        """Ids that are never sampled."""
        ...

    @property
    def device(self) -> torch.device:
        """Device of the weights; prompts and rollouts are in main memory."""
        ...

    def hidden(
        self,
        ids: Tensor,
        attention_mask: Tensor | None,
        kv_cache: KVCache | None = None,
        cache_positions: slice | None = None,
    ) -> Tensor:
        """Return the hidden states of a sequence, or of some of its positions.

        A whole forward fills `kv_cache`; a forward of `cache_positions` takes the ids of these
        positions alone and reads the rest from it.

        Args:
            ids: [B, T], or [B, W] with `cache_positions`.
            attention_mask: [B, T], False on padding; None without padding.
            kv_cache: keys and values to fill or to read; None: no cache.
            cache_positions: the W positions to compute; None: all.

        Returns:
            [B, T, D], or [B, W, D] with `cache_positions`.
        """
        ...

    def masked_hidden(self, ids: Tensor, attention_mask: Tensor | None, clean: Tensor) -> Tensor:
        """Return the hidden states of masked completions, to predict what is masked.

        A block-causal model predicts each block given the earlier blocks without masks, all blocks
        in one forward (BD3LM, arXiv 2503.09573). To any other it is `hidden`.

        Args:
            ids: [B, P+G], prompt and masked completion.
            attention_mask: [B, P+G], False on padding; None without padding.
            clean: [B, G], the completion without masks.

        Returns:
            [B, G, D].
        """
        ...

    def new_kv_cache(self) -> KVCache:
        """Return an empty cache."""
        ...

    def head(self, hidden: Tensor) -> Tensor:
        """Project hidden states [..., D] to logits [..., V]."""
        ...


class Teachers(Protocol):
    """Contexts around `hidden` and `head` that compute with other weights than the student's.

    Implemented by WeightContexts in models/teachers.py.
    """

    def use_teacher(
        self, kind: str, ema_decay: float, dropout: bool = False, attention: str = "base"
    ) -> None:
        """Choose the teacher.

        Args:
            kind: base (the reference), live (the student's weights) or ema (their moving
                average).
            ema_decay: decay of the moving average per update; used by ema alone.
            dropout: keep the adapter's dropout on in training; used by live alone.
            attention: base, all (each token sees every other) or causal (those before it).
        """
        ...

    def teacher(self) -> AbstractContextManager[object]:
        """Compute with the teacher's weights while the context lasts."""
        ...

    def reference(self) -> AbstractContextManager[object]:
        """Compute with the initial policy, the base or a start, while the context lasts."""
        ...

    def after_update(self) -> None:
        """Update a teacher that follows the student; called after each optimizer step."""
        ...


class Text(Protocol):
    """Conversion between chats, texts and token ids."""

    end_of_turn: str  # text of the token that ends a turn; or empty

    def encode(self, messages: list[dict[str, str]], prefill: str = "") -> Tensor:
        """Return the token ids [P] of a chat, up to where the answer begins.

        Args:
            messages: the chat, as {role, content}.
            prefill: text after the assistant's header, with which the answer begins.
        """
        ...

    def tokens(self, text: str) -> Tensor:
        """Return the token ids [n] of a text; none of them is a special token."""
        ...

    def decode(self, ids: Tensor, after_eos: bool = False, special: bool = True) -> str:
        """Return the text before the first end-of-sequence token; `after_eos`: of all tokens.

        Special tokens are written out, or with `special` False left out.
        """
        ...

    def pieces(self, ids: Tensor) -> list[str]:
        """Return the text of each token; joined, they are the decoded text of all tokens."""
        ...


class Policy(Forward, Teachers, Protocol):
    """The model that an algorithm trains: forward, teacher, text, and the processes of the run."""

    text: Text  # conversion between chats, texts and token ids
    forwards: UnevenForwards  # what a forward waits for
    process_group: ProcessGroup  # the processes that hold the same weights
    # sequences that fit into memory at once, by the length of their completion
    rows_that_fit: dict[int, int]

    def release_memory(self) -> None:
        """Give back the memory of what can be made again."""
        ...

    @property
    def needs_lockstep(self) -> bool:
        """Whether all processes must make every forward together, each with an input of its own."""
        ...

    def trainable(self) -> dict[str, Tensor]:
        """Return the parameters in training, by name."""
        ...
