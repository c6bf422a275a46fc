"""The mixture of experts of LLaDA-MoE, of the modules of transformers' Qwen3-MoE."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeMLP, Qwen3MoeTopKRouter

if TYPE_CHECKING:
    from dopsd.models.llada_moe.configuration import LladaMoeConfig


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
