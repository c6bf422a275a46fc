"""Decoders of transformers as masked diffusion models: their modules, without the causal mask.

The layers of Llama, Qwen2, Qwen3 and their kin take the mask, the rotary tables and the cache from
outside; `states` gives them those of a denoiser. Key names of the weights stay transformers' own,
which are the hub's.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForMaskedLM, PreTrainedModel  # evaluates annotations
from transformers.modeling_outputs import MaskedLMOutput

from dopsd.models.common.layout import Layout
from dopsd.models.denoiser import Denoiser, DenoiserConfig  # as above
from dopsd.models.kv_cache import KVCache


class LayerCache:
    """A KVCache as the attention layers of transformers call it."""

    def __init__(self, kv_cache: KVCache, positions: slice | None) -> None:
        self.kv_cache, self.positions = kv_cache, positions

    def update(self, k: Tensor, v: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Keep the keys and values [B, heads, W, width] of a layer; return those to attend to."""
        return self.kv_cache.joined(layer, k, v, self.positions)


def without_causal_mask(kind: type[PreTrainedModel]) -> type[PreTrainedModel]:
    """Return a subclass of a decoder's trunk, such as Qwen3Model, whose forward is `states`."""
    return type(f"Denoising{kind.__name__}", (kind,), {"forward": states})


def states(
    trunk: Any,  # noqa: ANN401  # the modules of transformers' decoders have no common class
    ids: Tensor,
    attention_mask: Tensor | None = None,
    kv_cache: KVCache | None = None,
    cache_positions: slice | None = None,
    copied: int = 0,
) -> Tensor:
    """Return the hidden states [B, T, D] of ids [B, T]; for the arguments see Denoiser.trunk."""
    first = 0 if cache_positions is None else cache_positions.start
    x = trunk.embed_tokens(ids)
    layout = Layout.of(trunk.config, first, first + ids.shape[1], copied)
    is_flash = str(trunk.config._attn_implementation).startswith("flash")
    inputs = {
        "attention_mask": attention_mask if is_flash else layout.mask(attention_mask, ids.device),
        "position_embeddings": trunk.rotary_emb(x, layout.positions(ids.device)[None]),
        "past_key_values": None if kv_cache is None else LayerCache(kv_cache, cache_positions),
    }
    for layer in trunk.layers:
        # in training mode transformers' layers recompute by themselves; training with dropout 0
        # runs in eval mode
        if layer.gradient_checkpointing and torch.is_grad_enabled() and not layer.training:
            x = layer._gradient_checkpointing_func(layer, x, **inputs)
        else:
            x = layer(x, **inputs)
    hidden: Tensor = trunk.norm(x)
    return hidden


class DecoderForMaskedLM(Denoiser):
    """A trunk with its head, by transformers' names: `model` and `lm_head`.

    There is no `lm_head` if its weights are tied, or if the trunk has the head.

    A subclass with a config_class of its own registers both with transformers' Auto classes.
    """

    model: Any  # transformers evaluates every annotation that it sees
    # made by `without_causal_mask`, or a class with the same modules, forward and _no_split_modules
    trunk_class: ClassVar[Any]
    embedding_name: ClassVar[str] = "embed_tokens"  # the trunk's name of the token embedding
    base_model_prefix = "model"
    main_input_name = "input_ids"
    # some files of tied weights hold the embedding twice
    _keys_to_ignore_on_load_unexpected = [r"^lm_head\.weight$"]  # noqa: RUF012
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_attention_backend = True
    supports_gradient_checkpointing = True

    def __init_subclass__(cls, **kwargs: Any) -> None:  # noqa: ANN401
        config_class: Any = vars(cls).get("config_class")
        super().__init_subclass__(**kwargs)  # type: ignore[no-untyped-call]
        if config_class is None:  # a variant of a registered class
            return
        cls._no_split_modules = cls.trunk_class._no_split_modules
        AutoConfig.register(config_class.model_type, config_class)
        AutoModelForMaskedLM.register(config_class, cls)

    def __init__(self, config: DenoiserConfig) -> None:
        super().__init__(config)
        self.model = self.trunk_class(config)
        if config.head_module == "lm_head" and not config.weight_tying:
            self.lm_head = nn.Linear(config.d_model, config.embedding_size, bias=False)
        blocks: Any = self.blocks()
        for module in blocks.modules():
            if hasattr(module, "is_causal"):
                module.is_causal = False
        self.post_init()

    def trunk(
        self,
        ids: Tensor,
        attention_mask: Tensor | None = None,
        kv_cache: KVCache | None = None,
        cache_positions: slice | None = None,
        copied: int = 0,
    ) -> Tensor:
        """Return the last hidden states [B, T, D] (see Denoiser.trunk)."""
        hidden: Tensor = self.model(ids, attention_mask, kv_cache, cache_positions, copied)
        return hidden

    def head(self, hidden: Tensor) -> Tensor:
        """Project hidden states [..., D] to logits [..., V]."""
        return nn.functional.linear(hidden, self.get_output_embeddings().get_parameter("weight"))

    def blocks(self) -> nn.ModuleList:
        """Return the blocks, first to last."""
        layers: nn.ModuleList = self.model.layers
        return layers

    def fuse(self) -> None:
        """Compute norms, rotary embeddings and SwiGLU of transformers' layers in fused kernels."""
        from dopsd.models.common.fused_layers import fuse_layers

        fuse_layers(self.model)
        self.is_fused = True

    def new_kv_cache(self) -> KVCache:
        """Return an empty cache."""
        return KVCache(self.config.n_layers, grows=self.config.attention_pattern == "block_causal")

    def get_input_embeddings(self) -> nn.Module:
        """Return the token embedding."""
        embedding: nn.Module = getattr(self.model, self.embedding_name)
        return embedding

    def get_output_embeddings(self) -> nn.Module:
        """Return the layer whose weight is the head: the embedding if weights are tied."""
        if self.config.weight_tying:
            return self.get_input_embeddings()
        return self.get_submodule(self.config.head_module)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> MaskedLMOutput:
        """Return the logits [B, T, V] of input_ids [B, T], as transformers' callers expect."""
        return MaskedLMOutput(logits=self.head(self.trunk(input_ids, attention_mask)))
