"""LLaDA-MoE-7B-A1B: Qwen3 without causal mask, and experts in place of its feed-forward parts.

Tensor names are those of the published checkpoints; the output is not shifted. Importing this
module registers model_type "llada_moe" with AutoConfig and AutoModelForMaskedLM.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForMaskedLM, Qwen3Model
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeMLP, Qwen3MoeTopKRouter

from dopsd.models.common.decoder import DecoderForMaskedLM, without_causal_mask
from dopsd.models.llada_moe.configuration import LladaMoeConfig


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
    _no_split_modules = ["Qwen3DecoderLayer"]  # noqa: RUF012


AutoConfig.register("llada_moe", LladaMoeConfig)
AutoModelForMaskedLM.register(LladaMoeConfig, LladaMoeForMaskedLM)


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
