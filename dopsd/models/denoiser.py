"""What every architecture's config and model class offer: the base classes of those in the folders
of dopsd/models.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Self

from transformers import PretrainedConfig, PreTrainedModel

if TYPE_CHECKING:
    from torch import Tensor, nn

    from dopsd.models.kv_cache import KVCache
    from dopsd.models.policy import Attention


class DenoiserConfig(PretrainedConfig):
    """config.json of a masked diffusion model, by the names that the rest of dopsd reads.

    Attributes:
        output_shift: 0: the state at position i predicts token i; 1: it predicts token i + 1.
        attention_pattern: which tokens see which.
    """

    if TYPE_CHECKING:  # transformers makes a required field of every annotation that it finds
        output_shift: int
        attention_pattern: Attention
        d_model: int
        n_layers: int
        embedding_size: int  # V, rows of the embedding
        max_sequence_length: int
        mask_token_id: int
        eos_token_id: int
        weight_tying: bool
    else:
        output_shift = 0
        attention_pattern = "bidirectional"

    @abstractmethod
    def linear_shapes(self) -> dict[str, tuple[int, int]]:
        """Return (inputs, outputs) of every linear layer of a block, by the names that LoRA targets
        have.
        """

    @abstractmethod
    def toy(self) -> Self:
        """Return the same kind of model, with the same tokens, at a width that takes seconds: for
        rehearsals.
        """


class Denoiser(PreTrainedModel):
    """A masked diffusion model as a trunk and a head."""

    config: DenoiserConfig

    @abstractmethod
    def trunk(
        self,
        ids: Tensor,
        attention_mask: Tensor | None = None,
        kv_cache: KVCache | None = None,
        cache_positions: slice | None = None,
    ) -> Tensor:
        """Return the last hidden states [B, T, D], before an output shift is undone."""

    @abstractmethod
    def head(self, hidden: Tensor) -> Tensor:
        """Project [..., D] to logits [..., V]."""

    @abstractmethod
    def blocks(self) -> nn.ModuleList:
        """Return the layers: what is sharded and compiled one by one, and whose linear layers LoRA
        adapts.
        """

    @abstractmethod
    def new_kv_cache(self) -> KVCache:
        """Return an empty cache."""
