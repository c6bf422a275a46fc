"""Base classes of the config and the model of every architecture in dopsd/models."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Self

from transformers import PretrainedConfig, PreTrainedModel
from transformers.utils import logging

if TYPE_CHECKING:
    from torch import Tensor, nn

    from dopsd.models.kv_cache import KVCache
    from dopsd.models.policy import Alignment, Attention


OF_THE_CLASS = (  # what a class computes, and no file can change
    *("output_shift", "attention_patterns", "has_fused_kernels", "head_module"),
    *("mask_token", "tokenizer_name", "end_of_turn", "text_ends_with_turn", "template_options"),
)

NARROW = 2048  # width from which on fused kernels are faster in training too, at LLaDA's 4096

logging.disable_progress_bar()  # stages show their own progress


class DenoiserConfig(PretrainedConfig):
    """Settings in config.json of a masked diffusion model, by the names that dopsd reads.

    Its eos_token_id ends a text, and fills padding.
    """

    in_file: ClassVar[tuple[str, ...]] = ()  # those of OF_THE_CLASS that a file may set after all
    if TYPE_CHECKING:  # transformers turns every annotation that it sees into a required field
        output_shift: int  # 0: the state at position i predicts token i; 1: it predicts token i + 1
        attention_patterns: tuple[Attention, ...]  # which the model class computes
        block_size: int | None  # tokens of a block, if no token sees a later block
        # where blocks are counted from: the first token of the sequence, so that a prompt may end
        # inside a block, or the first of the completion
        block_alignment: Alignment
        d_model: int  # D, width of the hidden states
        n_layers: int  # number of blocks
        embedding_size: int  # V, rows of the embedding
        max_sequence_length: int  # tokens of prompt and completion that it was trained for
        mask_token_id: int
        mask_token: str  # text of the mask, which tokenizers of published files may lack; or empty
        # transformers' class for a tokenizer that comes with its own code and without a
        # tokenizer.json; or empty
        tokenizer_name: str
        end_of_turn: str  # text of the token that ends a turn, which may be sampled; or empty
        text_ends_with_turn: bool  # whether it ends a text too, in place of eos_token_id
        template_options: dict[str, bool]  # of the chat template, as the base's authors give them
        weight_tying: bool  # whether the head shares the weights of the embedding
        has_fused_kernels: bool  # whether the model's `fuse` is written
        head_module: str  # the head's full name in the model; it is not quantised
    else:
        output_shift = 0
        has_fused_kernels = False
        attention_patterns = ("bidirectional",)
        block_size = None
        block_alignment = "completion"
        head_module = "lm_head"
        mask_token = tokenizer_name = end_of_turn = ""
        text_ends_with_turn = False
        template_options = {}

    @property
    def attention_pattern(self) -> Attention:
        """Which tokens see which."""
        return "block_causal" if self.block_size else "bidirectional"

    @property
    def attention_width(self) -> int:
        """Width of all heads of a layer together."""
        return self.d_model

    @property
    def is_fused_by_auto(self) -> bool:
        """Whether `model.kernels: auto` may take the fused kernels.

        Layers of a narrow base wait for the host, which launches these more slowly.
        """
        return self.has_fused_kernels and self.d_model >= NARROW

    @property
    def idle_parameters(self) -> int:
        """Weights of all blocks that one token does not use, such as those of other experts."""
        return 0

    def repeated_tensors(self) -> dict[str, str]:
        """Return tensors that files may hold twice: the first by the name of its second copy."""
        return {}

    @abstractmethod
    def linear_shapes(self) -> dict[str, tuple[int, int]]:
        """Return (inputs, outputs) of each linear layer of a block, by LoRA's target names."""

    @abstractmethod
    def toy(self) -> Self:
        """Return a tiny model of the same kind with the same tokens, for rehearsals in seconds."""


class Denoiser(PreTrainedModel):
    """A masked diffusion model as a trunk and a head."""

    config: DenoiserConfig
    is_fused = False  # whether it computes with fused kernels

    @abstractmethod
    def trunk(
        self,
        ids: Tensor,
        attention_mask: Tensor | None = None,
        kv_cache: KVCache | None = None,
        cache_positions: slice | None = None,
        copied: int = 0,
    ) -> Tensor:
        """Return the last hidden states, before an output shift is undone.

        Blocks of block-causal attention are counted from the first token that is no padding, or
        from the end of the sequence or the window, as the config's `block_alignment` says.

        Args:
            ids: [B, T], or [B, W] with `cache_positions`.
            attention_mask: [B, T], False on padding; None without padding.
            kv_cache: filled by a whole forward, read by one of `cache_positions`.
            cache_positions: the W positions to compute; None: all.
            copied: the last tokens are a second, masked copy of so many before them. Each block of
                the copy sees itself and the blocks before it in the first copy, and none sees the
                second. Under block-causal attention alone.

        Returns:
            [B, T, D], or [B, W, D] with `cache_positions`.
        """

    @abstractmethod
    def head(self, hidden: Tensor) -> Tensor:
        """Project hidden states [..., D] to logits [..., V]."""

    @abstractmethod
    def blocks(self) -> nn.ModuleList:
        """Return the transformer blocks, first to last.

        Blocks are sharded and compiled one by one; LoRA adapts their linear layers.
        """

    @abstractmethod
    def new_kv_cache(self) -> KVCache:
        """Return an empty cache."""

    def fuse(self) -> None:
        """Compute with fused kernels from now on; called if the config `has_fused_kernels`."""
        raise NotImplementedError
