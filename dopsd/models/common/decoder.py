"""Decoders of transformers as masked diffusion models: their modules, without the causal mask.

The layers of Llama, Qwen2, Qwen3 and their kin take the mask, the rotary tables and the cache from
outside; `states` gives them those of a denoiser. Key names of the weights stay transformers' own,
which are the hub's.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel  # noqa: TC002  # it evaluates annotations
from transformers.modeling_outputs import MaskedLMOutput

from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError
from dopsd.models.common.fields import check_fields, check_ids, check_known, check_numbers
from dopsd.models.common.layout import Layout
from dopsd.models.denoiser import OF_THE_CLASS, Denoiser, DenoiserConfig
from dopsd.models.kv_cache import KVCache

if TYPE_CHECKING:
    from typing import Self

READ = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    *("intermediate_size", "vocab_size", "max_position_embeddings", "rms_norm_eps"),
    "tie_word_embeddings",
)
WHOLE = (*READ[:-2], "head_dim")
ALLOWED: dict[str, tuple[object, ...]] = {
    "hidden_act": ("silu",),
    "attention_dropout": (0.0,),
    "use_sliding_window": (False,),
    "rope_scaling": (None,),
    "partial_rotary_factor": (None, 1),
}
TOY = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
TOY |= {"num_hidden_layers": 2, "intermediate_size": 128, "head_dim": 16}


class DecoderConfig(DenoiserConfig):
    """Names of dopsd for the fields of a decoder's config.

    Derive from this class first, then from transformers' config class.

    Attributes:
        required: fields that a file must state, besides READ and the base of the rotary angles.
        allowed: values that are computed, besides ALLOWED.
        whole: fields with a whole number above 0, besides WHOLE.
    """

    attribute_map: ClassVar[dict[str, str]] = {
        "d_model": "hidden_size",
        "n_layers": "num_hidden_layers",
        "embedding_size": "vocab_size",
        "max_sequence_length": "max_position_embeddings",
        "weight_tying": "tie_word_embeddings",
    }
    required: ClassVar[tuple[str, ...]] = ()
    allowed: ClassVar[dict[str, tuple[object, ...]]] = {}
    whole: ClassVar[tuple[str, ...]] = ()

    def repeated_tensors(self) -> dict[str, str]:
        """The head, if its weights are those of the embedding: some files hold both."""
        return {"lm_head.weight": "model.embed_tokens.weight"} if self.weight_tying else {}

    @property
    def attention_width(self) -> int:
        """Width of all heads of a layer together."""
        head = getattr(self, "head_dim", None) or self.hidden_size // self.num_attention_heads
        return int(head * self.num_attention_heads)

    def linear_shapes(self) -> dict[str, tuple[int, int]]:
        """Return (inputs, outputs) of every linear layer of a block."""
        width, hidden, wide = self.hidden_size, self.intermediate_size, self.attention_width
        narrow = wide // self.num_attention_heads * self.num_key_value_heads
        shapes = {"q_proj": (width, wide), "k_proj": (width, narrow), "v_proj": (width, narrow)}
        return shapes | {
            "o_proj": (wide, width),
            "gate_proj": (width, hidden),
            "up_proj": (width, hidden),
            "down_proj": (hidden, width),
        }

    def toy(self) -> Self:
        """Return a tiny model of the same kind with the same tokens, for rehearsals in seconds."""
        return self._toy({})

    def _toy(self, changes: dict[str, Any]) -> Self:
        fields = self.to_dict() | TOY | changes
        fields.pop("layer_types", None)  # one entry for each layer of the whole model
        return type(self).from_dict(fields)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Self:  # noqa: ANN401
        """Return the config, without the hub's pointers to its own code.

        Raises:
            DopsdError: if a field is missing, or has a value that the classes do not compute.
        """
        cls.check(config_dict)
        left_out = {"auto_map", "attn_implementation", "rope_scaling"}  # the last is None here
        fields = {name: value for name, value in config_dict.items() if name not in left_out}
        config: Self = super().from_dict(fields, **kwargs)
        return config

    @classmethod
    def check(cls, raw: dict[str, Any]) -> None:
        """Refuse fields of config.json that the classes do not compute, as `from_dict` does."""
        rope = raw.get("rope_parameters") or {"rope_type": None}
        if not isinstance(rope, dict):
            raise DopsdError(
                f"config.json has rope_parameters: {rope!r}; expected a table",
                code=Code.MODEL_CONFIG,
            )
        rope = raw | rope
        names = ("rope_theta", "rope_type", "partial_rotary_factor")
        raw = raw | {name: rope.get(name) for name in names}
        allowed = ALLOWED | {"rope_type": ("default", None)} | cls.allowed
        allowed |= {name: (getattr(cls, name),) for name in OF_THE_CLASS}
        check_fields(raw, cls.model_type, (*READ, "rope_theta", *cls.required), allowed)
        check_numbers(raw, (*WHOLE, "block_size", *cls.whole), ("rms_norm_eps", "rope_theta"))
        check_ids(raw, ("mask_token_id", "eos_token_id"), raw["vocab_size"])
        fields = {field.name for field in dataclasses.fields(cls)}
        check_known(raw, {*allowed, *WHOLE, *cls.required, *cls.whole, *fields})
        heads, kv_heads = raw["num_attention_heads"], raw["num_key_value_heads"]
        if heads % kv_heads or (raw["hidden_size"] % heads and not raw.get("head_dim")):
            raise DopsdError(
                f"config.json: num_attention_heads {heads} must be a multiple of"
                f" num_key_value_heads {kv_heads}, and without head_dim divide hidden_size"
                f" {raw['hidden_size']}",
                code=Code.MODEL_CONFIG,
            )
        if any(kind != "full_attention" for kind in raw.get("layer_types") or ()):
            raise DopsdError(
                "config.json has layer_types other than full_attention; this model computes no"
                " such thing",
                code=Code.UNSUPPORTED_MODEL,
            )


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
    layout = Layout(first, first + ids.shape[1], copied, trunk.config.block_size)
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
    """A trunk with its head, by transformers' names: `model` and, unless tied, `lm_head`.

    Attributes:
        trunk_class: made by `without_causal_mask`, or a class with the same modules and forward.
        embedding_name: the trunk's name of the token embedding.
    """

    model: Any  # transformers evaluates every annotation that it sees
    trunk_class: ClassVar[type[nn.Module]]
    embedding_name: ClassVar[str] = "embed_tokens"
    base_model_prefix = "model"
    main_input_name = "input_ids"
    # some files of tied weights hold the embedding twice
    _keys_to_ignore_on_load_unexpected = [r"^lm_head\.weight$"]  # noqa: RUF012
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_attention_backend = True
    supports_gradient_checkpointing = True

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        self.model = self.trunk_class(config)
        if not config.weight_tying:
            self.lm_head = nn.Linear(config.d_model, config.embedding_size, bias=False)
        for module in self.model.layers.modules():
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

    def new_kv_cache(self) -> KVCache:
        """Return an empty cache."""
        return KVCache(self.config.n_layers, grows=self.config.attention_pattern == "block_causal")

    def get_input_embeddings(self) -> nn.Module:
        """Return the token embedding."""
        embedding: nn.Module = getattr(self.model, self.embedding_name)
        return embedding

    def get_output_embeddings(self) -> nn.Module:
        """Return the layer whose weight is the head: the embedding if weights are tied."""
        return self.get_input_embeddings() if self.config.weight_tying else self.lm_head

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> MaskedLMOutput:
        """Return the logits [B, T, V] of input_ids [B, T], as transformers' callers expect."""
        return MaskedLMOutput(logits=self.head(self.trunk(input_ids, attention_mask)))
