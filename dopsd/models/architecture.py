"""What an architecture says of itself, and which there are: a folder each in dopsd/models, and the entry points `dopsd.models`.

A folder has `architecture.py`, which registers its config and model classes with transformers' AutoConfig and
AutoModelForMaskedLM under the folder's name (model_type "my-model" is the folder my_model). The classes fit the
protocols below; nothing outside the folder asks which architecture it is.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Protocol, Self

from dopsd.core.errors import DopsdError
from dopsd.core.registry import Registry

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor, nn

    from dopsd.models.policy import Attention, KVCache

ARCHITECTURES = Registry("dopsd.models", "architecture", marker="architecture")


class DenoiserConfig(Protocol):
    """config.json of a model, by the names that the rest of dopsd reads."""

    model_type: str
    output_shift: int  # 0: the state at position i predicts token i; 1: it predicts token i + 1
    attention_pattern: Attention
    d_model: int
    n_layers: int
    embedding_size: int  # V, rows of the embedding
    max_sequence_length: int
    mask_token_id: int
    eos_token_id: int
    weight_tying: bool

    def linear_shapes(self) -> dict[str, tuple[int, int]]:
        """Return (inputs, outputs) of every linear layer of a block, by the names that LoRA targets have."""
        ...

    def toy(self) -> Self:
        """Return the same kind of model at a width that takes seconds, for rehearsals."""
        ...


class Denoiser(Protocol):
    """A transformers model of an architecture folder, as the policy uses it."""

    config: DenoiserConfig

    def trunk(
        self,
        ids: Tensor,
        attention_mask: Tensor | None = None,
        kv_cache: KVCache | None = None,
        cache_positions: slice | None = None,
    ) -> Tensor:
        """Return the last hidden states, before any shift is undone."""
        ...

    def head(self, hidden: Tensor) -> Tensor:
        """Project [..., D] to logits [..., V]."""
        ...

    def blocks(self) -> nn.ModuleList:
        """Return the layers: what is sharded and compiled one by one, and whose linear layers LoRA adapts."""
        ...

    def new_kv_cache(self) -> KVCache:
        """Return an empty cache."""
        ...


def register(folder: Path) -> None:
    """Import the architecture that a checkpoint's config.json names, so that transformers' Auto classes know it.

    Raises:
        DopsdError: if there is no such architecture; the line lists those that exist.
    """
    try:
        model_type = json.loads((folder / "config.json").read_bytes())["model_type"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return  # whoever reads the file whole says what is wrong with it
    name = str(model_type).replace("-", "_")
    if name not in ARCHITECTURES.names:
        raise DopsdError(
            f"{folder}/config.json: model_type {model_type!r} is not known here; there is {', '.join(ARCHITECTURES.names)}"
        )
    ARCHITECTURES.module(name, "architecture")
