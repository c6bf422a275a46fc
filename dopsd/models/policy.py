"""Protocols of a masked diffusion language model, by concern: its forward, its teacher, its text;
and all of it as Policy.

Code asks for the narrowest that it needs: a sampler takes a Forward, a prompt set a Text, an
algorithm a Policy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    import torch
    from torch import Tensor

    from dopsd.distributed.process_group import ProcessGroup
    from dopsd.models.kv_cache import KVCache

Attention = Literal["bidirectional", "block_causal"]


class Forward(Protocol):
    """The model as a trunk and a head, with its special tokens.

    Whatever the architecture, position i of `hidden` predicts token i: an output shift is undone
    below this protocol.
    """

    mask_id: int
    eos_id: int
    vocabulary: int  # V, entries of the head
    max_length: int  # tokens of prompt and completion that the model was trained for
    attention_pattern: Attention

    @property
    def suppress_tokens(self) -> Sequence[int]:
        """Ids that are never sampled."""
        ...

    @property
    def device(self) -> torch.device:
        """Where the weights are, and prompts go."""
        ...

    def hidden(
        self,
        ids: Tensor,
        attention_mask: Tensor | None,
        kv_cache: KVCache | None = None,
        cache_positions: slice | None = None,
    ) -> Tensor:
        """Return hidden states [B, T, D] of ids [B, T].

        A whole forward fills `kv_cache`; one of `cache_positions` takes their ids [B, W] alone and
        reads the rest from it.
        """
        ...

    def new_kv_cache(self) -> KVCache:
        """Return an empty cache."""
        ...

    def head(self, hidden: Tensor) -> Tensor:
        """Project [..., D] to logits [..., V]."""
        ...


class Teachers(Protocol):
    """The weights that a forward is made with, other than the student's: contexts around `hidden`
    and `head`.
    """

    def use_teacher(self, kind: str, ema_decay: float) -> None:
        """Choose the teacher: base, live or ema."""
        ...

    def teacher(self) -> AbstractContextManager[object]:
        """Compute with the teacher's weights."""
        ...

    def reference(self) -> AbstractContextManager[object]:
        """Compute with the initial policy, adapters off."""
        ...

    def after_update(self) -> None:
        """Let a teacher that follows the student take its step."""
        ...


class Text(Protocol):
    """Between chats, texts and token ids."""

    def encode(self, messages: list[dict[str, str]], prefill: str = "") -> Tensor:
        """Return token ids [P] of the chat with the assistant's header, and how its answer
        starts.
        """
        ...

    def tokens(self, text: str) -> Tensor:
        """Return token ids [n] of a text as it stands."""
        ...

    def decode(self, ids: Tensor) -> str:
        """Return the text before the first end-of-sequence token."""
        ...


class Policy(Forward, Teachers, Protocol):
    """What an algorithm trains: forward, teacher, text, and the processes that train together."""

    text: Text
    process_group: ProcessGroup
    rows_that_fit: dict[
        int, int
    ]  # sequences found to fit into memory at once, by tokens of an answer

    @property
    def is_locked(self) -> bool:
        """Whether all processes must make every forward together, each with an input of its own."""
        ...

    def trainable(self) -> dict[str, Tensor]:
        """Return the parameters in training, by name."""
        ...
