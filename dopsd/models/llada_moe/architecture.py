"""LLaDA-MoE-7B-A1B: Qwen3 without causal mask, and experts in place of its feed-forward parts.

Tensor names are those of the published checkpoints; the output is not shifted. Importing this
module registers model_type "llada_moe" with AutoConfig and AutoModelForMaskedLM.
"""

from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from transformers import Qwen3Config, Qwen3Model
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeMLP, Qwen3MoeTopKRouter

from dopsd.models.common.decoder import DecoderForMaskedLM, without_causal_mask
from dopsd.models.common.decoder_config import DecoderConfig, check_fields

TOY: dict[str, Any] = {"num_experts": 8, "num_experts_per_tok": 2, "expert_intermediate_size": 32}
TOY |= {"intermediate_size": 32, "moe_layer_freq": None}  # the latter lists all layers


class LladaMoeConfig(DecoderConfig, Qwen3Config):
    """Shape of a LLaDA-MoE model; the published files need not name width of a head, mask or end.

    The only width of feed-forward parts is that of an expert: no layer is dense.
    """

    model_type = "llada_moe"
    mask_token = "<|mask|>"
    has_fused_kernels = True
    end_of_turn = "<|role_end|>"
    required: ClassVar[tuple[str, ...]] = (
        *("num_experts", "num_experts_per_tok", "expert_intermediate_size"),
    )
    allowed: ClassVar[dict[str, tuple[object, ...]]] = {
        "attention_bias": (False,),
        "clip_qkv": (None,),
        "norm_topk_prob": (False, None),
        "qk_layernorm": (True,),
        "shared_expert_intermediate_size": (None,),
        "moe_router_enable_expert_bias": (False, None),
        "moe_router_score_function": ("softmax", None),
        "routed_scaling_factor": (1, None),
        "router_num_group": (None,),
        "router_topk_group": (None,),
    }
    whole: ClassVar[tuple[str, ...]] = (*required, "dense_intermediate_size")
    vocab_size: int = 157184
    num_experts: int = 64
    num_experts_per_tok: int = 8
    expert_intermediate_size: int = 1024
    norm_topk_prob: bool = False
    eos_token_id: int = 156892
    mask_token_id: int = 156895

    def __post_init__(self, **kwargs: Any) -> None:  # noqa: ANN401  # transformers' own
        self.head_dim = self.hidden_size // self.num_attention_heads
        self.intermediate_size = self.expert_intermediate_size
        super().__post_init__(**kwargs)  # type: ignore[no-untyped-call]

    @property
    def idle_parameters(self) -> int:
        """Weights of the experts that one token does not use."""
        idle = self.num_experts - self.num_experts_per_tok
        return self.num_hidden_layers * idle * 3 * self.hidden_size * self.expert_intermediate_size

    def linear_shapes(self) -> dict[str, tuple[int, int]]:
        """Return (inputs, outputs) of a block's linear layers; of experts, what a token uses."""
        width, used = self.hidden_size, self.expert_intermediate_size * self.num_experts_per_tok
        experts = {"gate_proj": (width, used), "up_proj": (width, used), "down_proj": (used, width)}
        return super().linear_shapes() | experts

    def toy(self) -> Self:
        """Return a tiny model of the same kind with the same tokens, for rehearsals in seconds."""
        return self._toy(TOY)

    @classmethod
    def check(cls, raw: dict[str, Any]) -> None:
        """Refuse fields of config.json that the classes do not compute, as `from_dict` does."""
        width = raw.get("expert_intermediate_size")
        raw = {name: v for name, v in raw.items() if v is not None or name != "eos_token_id"}
        super().check({"intermediate_size": width or 1} | raw | {"moe_layer_freq": None})
        computed: dict[str, tuple[object, ...]] = {
            "intermediate_size": (width, None),
            "head_dim": (raw["hidden_size"] // raw["num_attention_heads"], None),
            "moe_layer_freq": ([1] * raw["num_hidden_layers"], 1, None),
        }
        check_fields(raw, cls.model_type, (), computed)


class Trunk(Qwen3Model):
    """Qwen3's trunk with experts."""

    def __init__(self, config: LladaMoeConfig) -> None:
        super().__init__(config)
        for layer in self.layers:
            layer.mlp = Experts(config)

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)  # type: ignore[no-untyped-call]
        if isinstance(module, Qwen3MoeTopKRouter):
            nn.init.normal_(module.weight, std=self.config.initializer_range)


class LladaMoeForMaskedLM(DecoderForMaskedLM):
    """LLaDA-MoE with its head."""

    config_class = LladaMoeConfig
    trunk_class = without_causal_mask(Trunk)


class Experts(nn.Module):
    """The sum of a token's experts, weighted by a softmax over all; each has its own tensors."""

    def __init__(self, config: LladaMoeConfig) -> None:
        super().__init__()
        self.gate = Qwen3MoeTopKRouter(config)
        self.experts = nn.ModuleList([Qwen3MoeMLP(config) for _ in range(config.num_experts)])

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, T, D] of x [B, T, D]."""
        tokens = x.flatten(0, 1)  # [N, D]
        _, weights, chosen = self.gate(tokens)  # [N, k]
        total = torch.zeros_like(tokens)
        for number in chosen.unique().tolist():
            rows, places = (chosen == number).nonzero(as_tuple=True)
            part = self.experts[number](tokens[rows]) * weights[rows, places, None]
            total = total.index_add(0, rows, part)
        return total.view_as(x)
