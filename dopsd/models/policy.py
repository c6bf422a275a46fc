"""The protocol that samplers and algorithms stand on: a model seen as trunk and head, with a teacher and a reference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    import torch
    from torch import Tensor

    from dopsd.distributed.process_group import ProcessGroup


class Policy(Protocol):
    """A masked diffusion language model with an adapter, seen as a trunk and a head."""

    process_group: ProcessGroup
    rows_that_fit: dict[
        int, int
    ]  # sequences at once that were found to fit into memory, by the tokens of an answer
    mask_id: int
    eos_id: int
    vocabulary: int  # V, entries of the head
    max_length: int  # tokens of prompt and completion that the model was trained for

    @property
    def device(self) -> torch.device: ...  # where its weights are, and prompts go

    @property
    def is_locked(self) -> bool: ...  # whether all processes must make every forward together

    @property
    def suppress_tokens(self) -> Sequence[int]: ...

    # [B, T] -> [B, T, D]; a whole forward fills `kv_cache`; one of some positions, ids [B, W], reads the rest from it
    def hidden(
        self,
        ids: Tensor,
        attention_mask: Tensor | None,
        kv_cache: Any = None,  # noqa: ANN401  # what new_kv_cache makes
        cache_positions: slice | None = None,
    ) -> Tensor: ...

    def new_kv_cache(self) -> Any: ...  # noqa: ANN401  # an empty cache

    def head(self, hidden: Tensor) -> Tensor: ...  # [..., D] -> [..., V]

    def teacher(self) -> AbstractContextManager[None]: ...

    def reference(self) -> AbstractContextManager[None]: ...

    def use_teacher(self, kind: str, ema_decay: float) -> None: ...  # base, live or ema

    def after_update(self) -> None: ...

    def trainable(self) -> dict[str, Tensor]: ...

    def encode(self, messages: list[dict[str, str]], prefill: str = "") -> Tensor: ...  # -> [P]

    def tokens(self, text: str) -> Tensor: ...  # -> [n]

    def decode(self, ids: Tensor) -> str: ...
