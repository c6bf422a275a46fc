"""The mixture of experts of LLaDA2.0: a router over groups of experts, and a shared expert."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, silu

from dopsd.models.llada2_moe.configuration import RANKED

if TYPE_CHECKING:
    from dopsd.models.llada2_moe.configuration import Llada2MoeConfig

LOWEST = 1e-20  # added to the sum of weights, as published


class FeedForward(nn.Module):
    """SwiGLU of some width."""

    def __init__(self, config: Llada2MoeConfig, hidden: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, hidden, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., D] of x [..., D]."""
        fed: Tensor = self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))
        return fed


class Router(nn.Module):
    """Choose experts of each token.

    A sigmoid scores each expert. A bias, which balanced the load in training, counts in the choice
    alone: the groups whose two best experts score highest, then the best experts in these groups.
    """

    def __init__(self, config: Llada2MoeConfig) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.empty(config.num_experts, config.hidden_size))
        self.register_buffer("expert_bias", torch.zeros(config.num_experts))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the experts [N, k] of the tokens x [N, D], and their weights [N, k]."""
        c = self.config
        scores = linear(x.float(), self.weight.float()).sigmoid()  # [N, E]
        biased = scores + self.get_buffer("expert_bias").float()
        groups = biased.unflatten(1, (c.n_group, -1))  # [N, groups, E / groups]
        best = groups.topk(RANKED, -1).values.sum(-1).topk(c.topk_group, -1).indices
        is_out = torch.ones_like(groups[:, :, 0], dtype=torch.bool).scatter(1, best, False)
        candidates = groups.masked_fill(is_out[:, :, None], -torch.inf).flatten(1)
        experts = candidates.topk(c.num_experts_per_tok, -1).indices
        weights = scores.gather(1, experts)
        if c.num_experts_per_tok > 1:
            weights = weights / (weights.sum(-1, keepdim=True) + LOWEST)
        return experts, weights * c.routed_scaling_factor


class Experts(nn.Module):
    """The weighted sum of a token's experts, in float32 as published, plus the shared expert."""

    def __init__(self, config: Llada2MoeConfig) -> None:
        super().__init__()
        width = config.moe_intermediate_size
        self.gate = Router(config)
        self.experts = nn.ModuleList(
            [FeedForward(config, width) for _ in range(config.num_experts)]
        )
        self.shared_experts = FeedForward(config, width * config.num_shared_experts)

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, T, D] of x [B, T, D]."""
        tokens = x.flatten(0, 1)  # [N, D]
        chosen, weights = self.gate(tokens)
        parts = tokens.new_zeros(*chosen.shape, tokens.shape[-1])  # [N, k, D]
        for number in chosen.unique().tolist():
            places = (chosen == number).nonzero(as_tuple=True)
            parts = parts.index_put(places, self.experts[number](tokens[places[0]]))
        total = (parts.float() * weights[..., None]).sum(1).to(x.dtype).view_as(x)
        mixed: Tensor = total + self.shared_experts(x)
        return mixed
