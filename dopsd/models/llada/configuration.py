"""Check config.json of a LLaDA checkpoint: required fields, and values that this code computes."""

from __future__ import annotations

import dataclasses
from typing import Any

from dopsd.core.errors import Code
from dopsd.models.common.decoder_config import check_fields, check_ids, check_known, check_numbers
from dopsd.models.denoiser import OF_THE_CLASS, DenoiserConfig

# fields of config.json that change the computation: each is required, none has a silent default
READ = (
    *(
        "d_model",
        "n_heads",
        "n_kv_heads",
        "n_layers",
        "mlp_hidden_size",
        "vocab_size",
        "embedding_size",
    ),
    *(
        "weight_tying",
        "max_sequence_length",
        "rope_theta",
        "rms_norm_eps",
        "mask_token_id",
        "eos_token_id",
    ),
)
FIXED = {  # the only values that this class computes; any other would load and be silently wrong
    "block_type": "llama",
    "activation_type": "silu",
    "rope": True,
    "rope_full_precision": True,
    "include_bias": False,
    "attention_layer_norm": False,
    "layer_norm_type": "rms",
}
# other fields of the published files that can change the computation; with these values they do not
ABSENT_OR = {
    "alibi": (False, None),
    "scale_logits": (False, None),
    "input_emb_norm": (False, None),
    "include_qkv_bias": (False, None),
    "bias_for_layer_norm": (False, None),
    "layer_norm_with_affine": (True,),
    "multi_query_attention": (None, False),
    "block_group_size": (1,),
    "clip_qkv": (None,),
    "attention_dropout": (0.0,),
    "embedding_dropout": (0.0,),
    "residual_dropout": (0.0,),
}
IDLE = {  # of the published files: how the weights were first drawn, and sizes of what is off
    *("alibi_bias_max", "attention_layer_norm_with_affine", "init_device", "init_fn", "init_std"),
    *("mlp_ratio", "precision", "flash_attention"),
}
RENAMED = {  # transformers' names for fields that this class sets itself
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "tie_word_embeddings",
}


TOY = {"d_model": 64, "n_heads": 4, "n_kv_heads": 4, "n_layers": 2, "mlp_hidden_size": 128}


class LladaConfig(DenoiserConfig):
    """Shape of a LLaDA model.

    The defaults are LLaDA-8B's published values; they never fill in for missing fields of a file.
    """

    model_type = "llada"
    has_fused_kernels = True
    end_of_turn = "<|eot_id|>"
    head_module = "model.transformer.ff_out"  # blocks have an ff_out too

    def __init__(  # noqa: PLR0913, PLR0917 (config.json by name, as transformers calls it)
        self,
        d_model: int = 4096,
        n_heads: int = 32,
        n_kv_heads: int = 32,
        n_layers: int = 32,
        mlp_hidden_size: int = 12288,
        vocab_size: int = 126464,
        embedding_size: int = 126464,
        weight_tying: bool = False,
        max_sequence_length: int = 4096,
        rope_theta: float = 500000.0,
        rms_norm_eps: float = 1e-5,
        mask_token_id: int = 126336,
        eos_token_id: int = 126081,
        **kwargs: Any,  # noqa: ANN401  # transformers' own
    ) -> None:
        values = dict(locals())
        for name in READ:
            setattr(self, name, values[name])
        self.num_hidden_layers, self.hidden_size = n_layers, d_model
        self.num_attention_heads, self.num_key_value_heads = n_heads, n_kv_heads
        tied: dict[str, Any] = {"eos_token_id": eos_token_id, "tie_word_embeddings": weight_tying}
        super().__init__(**(tied | FIXED | kwargs))

    def linear_shapes(self) -> dict[str, tuple[int, int]]:
        """Return (inputs, outputs) of every linear layer of a block."""
        width, hidden = self.d_model, self.mlp_hidden_size
        narrow = width // self.n_heads * self.n_kv_heads
        shapes = {"q_proj": (width, width), "k_proj": (width, narrow), "v_proj": (width, narrow)}
        return shapes | {
            "attn_out": (width, width),
            "ff_proj": (width, hidden),
            "up_proj": (width, hidden),
            "ff_out": (hidden, width),
        }

    def toy(self) -> LladaConfig:
        """Return a tiny LLaDA with the same tokens, for rehearsals in seconds."""
        return LladaConfig.from_dict(self.to_dict() | TOY)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> LladaConfig:  # noqa: ANN401
        """Return the config, without the hub's pointers to its own code."""
        _check(config_dict)
        ignored = RENAMED | {"auto_map"}
        return super().from_dict(
            {k: v for k, v in config_dict.items() if k not in ignored}, **kwargs
        )


def _check(raw: dict[str, Any]) -> None:
    allowed = ABSENT_OR | {name: (value,) for name, value in FIXED.items()}
    allowed |= {name: (getattr(LladaConfig, name),) for name in OF_THE_CLASS}
    check_fields(raw, "LLaDA", READ, allowed)
    check_numbers(raw, READ[:7] + READ[8:9], ("rope_theta", "rms_norm_eps"))
    check_ids(raw, ("mask_token_id", "eos_token_id"), raw["embedding_size"])
    fields = {field.name for field in dataclasses.fields(LladaConfig)}
    check_known(raw, {*allowed, *READ, *RENAMED, *IDLE, *fields})
    width, heads, kv_heads = raw["d_model"], raw["n_heads"], raw["n_kv_heads"]
    if width % (2 * heads) or heads % kv_heads:
        raise Code.MODEL_CONFIG.error(
            f"config.json: d_model {width} must be a multiple of 2 x n_heads {heads}, and n_heads"
            f" of n_kv_heads {kv_heads}"
        )
