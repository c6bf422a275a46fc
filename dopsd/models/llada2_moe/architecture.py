"""LLaDA2.0-mini and -flash (arXiv 2512.15745), with the tensor names of the published checkpoints.

Block-causal attention with norms of queries and keys, rotary embeddings of the first dimensions of
each head, and a mixture of experts after the first layers. The output is not shifted. Importing
this module registers model_type "llada2_moe" with AutoConfig and AutoModelForMaskedLM.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, silu
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from dopsd.core.errors import Code
from dopsd.models.common.decoder import DecoderForMaskedLM, LayerCache
from dopsd.models.common.decoder_config import DecoderConfig, check_numbers
from dopsd.models.common.layout import Layout
from dopsd.models.kernels.operators import rope_tables
from dopsd.models.kv_cache import KVCache

RANKED = 2  # experts whose scores rank a group
ROTATED = 0.5  # share of a head that the published class rotates where a file does not say it
TOY = {"num_experts": 8, "num_experts_per_tok": 2, "n_group": 4, "topk_group": 2}
TOY |= {"moe_intermediate_size": 32, "rotary_dim": 8}


def is_share(value: object) -> bool:
    """Return whether a field of a file is a number above 0 and at most 1."""
    return type(value) in (int, float) and 0 < value <= 1  # type: ignore[operator]


class Llada2MoeConfig(DecoderConfig):
    """Shape of a LLaDA2.0 model; the published files name neither mask nor end nor block."""

    model_type = "llada2_moe"
    attention_patterns = ("block_causal",)
    mask_token = "<|mask|>"
    end_of_turn = "<|role_end|>"
    required: ClassVar[tuple[str, ...]] = (
        *("head_dim", "num_experts", "num_experts_per_tok", "num_shared_experts", "n_group"),
        *("topk_group", "moe_intermediate_size", "first_k_dense_replace", "routed_scaling_factor"),
        "rotary_dim",
    )
    whole: ClassVar[tuple[str, ...]] = (
        *("num_experts", "num_experts_per_tok", "n_group", "topk_group", "moe_intermediate_size"),
        "rotary_dim",
    )
    allowed: ClassVar[dict[str, tuple[object, ...]]] = {
        "score_function": ("sigmoid",),
        "norm_topk_prob": (True,),
        "moe_router_enable_expert_bias": (True,),
        "use_qk_norm": (True,),
        "use_qkv_bias": (False,),
        "use_bias": (False,),
        "use_rmsnorm": (True,),
        "norm_head": (False,),
        "norm_softmax": (False,),
        "router_dtype": ("fp32", None),
    }
    vocab_size: int = 157184
    hidden_size: int = 2048
    intermediate_size: int = 5120
    num_hidden_layers: int = 20
    num_attention_heads: int = 16
    num_key_value_heads: int = 4
    head_dim: int = 128
    rotary_dim: int = 64
    max_position_embeddings: int = 16384
    rms_norm_eps: float = 1e-6
    rope_theta: float = 600000.0
    num_experts: int = 256
    num_experts_per_tok: int = 8
    num_shared_experts: int = 1
    n_group: int = 8
    topk_group: int = 4
    moe_intermediate_size: int = 512
    first_k_dense_replace: int = 1
    routed_scaling_factor: float = 2.5
    tie_word_embeddings: bool = False
    eos_token_id: int = 156892
    pad_token_id: int = 156892
    mask_token_id: int = 156895
    block_size: int = 32
    # as in the published sampler and training
    block_alignment: str = "sequence"  # type: ignore[assignment]

    @property
    def idle_parameters(self) -> int:
        """Weights of the experts that one token does not use."""
        idle = self.num_experts - self.num_experts_per_tok
        layers = self.num_hidden_layers - self.first_k_dense_replace
        return int(layers * idle * 3 * self.hidden_size * self.moe_intermediate_size)

    def linear_shapes(self) -> dict[str, tuple[int, int]]:
        """Return (inputs, outputs) of a block's linear layers; of experts, what a token uses."""
        width, head = self.hidden_size, self.head_dim
        wide = head * self.num_attention_heads
        used = self.moe_intermediate_size * (self.num_experts_per_tok + self.num_shared_experts)
        return {
            "query_key_value": (width, wide + 2 * head * self.num_key_value_heads),
            "dense": (wide, width),
            "gate_proj": (width, used),
            "up_proj": (width, used),
            "down_proj": (used, width),
        }

    def toy(self) -> Self:
        """Return a tiny model of the same kind with the same tokens, for rehearsals in seconds."""
        return self._toy(TOY)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Self:  # noqa: ANN401
        """Return the config; the width that is rotated may be given as a share of a head's."""
        given = config_dict.get("rope_parameters")
        raw = config_dict | (given if isinstance(given, dict) else {})
        raw.pop("rope_parameters", None)
        share, width = raw.get("partial_rotary_factor", ROTATED), raw.get("head_dim")
        if type(width) is int and is_share(share):
            raw = {"rotary_dim": int(width * share)} | raw
        if raw.get("eos_token_id", 0) is None:
            del raw["eos_token_id"]
        return super().from_dict(raw, **kwargs)

    @classmethod
    def check(cls, raw: dict[str, Any]) -> None:
        """Refuse fields of config.json that the classes do not compute, as `from_dict` does."""
        super().check(raw | {"partial_rotary_factor": None})
        check_numbers(raw, (), ("routed_scaling_factor",))
        width, turned, shared = raw["head_dim"], raw["rotary_dim"], raw["num_shared_experts"]
        experts, groups, kept = raw["num_experts"], raw["n_group"], raw["topk_group"]
        dense, layers, used = (
            raw[name]
            for name in ("first_k_dense_replace", "num_hidden_layers", "num_experts_per_tok")
        )
        share = raw.get("partial_rotary_factor")
        share = ROTATED if share is None else share
        problem = ""
        if type(dense) is not int or not 0 <= dense <= layers:
            problem = f"first_k_dense_replace {dense} must be at most num_hidden_layers {layers}"
        elif type(shared) is not int or shared < 1:
            problem = f"num_shared_experts {shared} must be a whole number above 0"
        elif turned % 2 or turned > width:
            problem = f"rotary_dim {turned} must be even, and at most head_dim {width}"
        elif not is_share(share) or int(width * share) != turned:
            problem = (
                f"rotary_dim {turned} is not partial_rotary_factor {share!r} (published default"
                f" {ROTATED}) of head_dim {width}, as the published class rotates"
            )
        elif experts % groups or experts // groups < RANKED or kept > groups:
            problem = (
                f"num_experts {experts} must be n_group {groups} times {RANKED} or more, and"
                f" topk_group {kept} at most n_group"
            )
        elif used > kept * (experts // groups):
            problem = f"num_experts_per_tok {used} are more than topk_group {kept} groups have"
        if problem:
            raise Code.MODEL_CONFIG.error(f"config.json: {problem}")


class Attention(nn.Module):
    """Grouped-query attention with normalised queries and keys."""

    is_causal = False  # read by transformers' attention functions, like num_key_value_groups

    def __init__(self, config: Llada2MoeConfig, layer: int) -> None:
        super().__init__()
        self.config, self.layer = config, layer
        heads, kv_heads, head = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        self.num_key_value_groups = heads // kv_heads
        self.sizes = [heads * head, kv_heads * head, kv_heads * head]
        self.query_key_value = nn.Linear(config.hidden_size, sum(self.sizes), bias=False)
        self.dense = nn.Linear(heads * head, config.hidden_size, bias=False)
        self.query_layernorm = Qwen3RMSNorm(head, config.rms_norm_eps)
        self.key_layernorm = Qwen3RMSNorm(head, config.rms_norm_eps)

    def forward(
        self,
        x: Tensor,
        rope: tuple[Tensor, Tensor],
        mask: Tensor | None,
        cache: LayerCache | None,
    ) -> Tensor:
        """Return [B, T, D] of normalised states x [B, T, D]."""
        parts = self.query_key_value(x).split(self.sizes, -1)
        q, k, v = (part.unflatten(-1, (-1, self.config.head_dim)).transpose(1, 2) for part in parts)
        q, k = (_turned(z, rope) for z in (self.query_layernorm(q), self.key_layernorm(k)))
        if cache is not None:
            k, v = cache.update(k, v, self.layer)
        attention = ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation]
        out, _ = attention(self, q, k, v, mask, is_causal=False)  # [B, T, heads, width]
        projected: Tensor = self.dense(out.flatten(2))
        return projected


def _turned(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate the first dimensions of each head of x [B, heads, T, width], in its dtype."""
    cos, sin = (table.to(x.dtype) for table in rope)
    turned, rest = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    first, second = turned.chunk(2, -1)
    return torch.cat([turned * cos + torch.cat([-second, first], -1) * sin, rest], -1)


class Block(nn.Module):
    """Attention, then a feed-forward or experts; both pre-normalised."""

    def __init__(self, config: Llada2MoeConfig, layer: int) -> None:
        super().__init__()
        is_dense = layer < config.first_k_dense_replace
        self.input_layernorm = Qwen3RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.attention = Attention(config, layer)
        self.post_attention_layernorm = Qwen3RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = FeedForward(config, config.intermediate_size) if is_dense else Experts(config)

    def forward(
        self,
        x: Tensor,
        rope: tuple[Tensor, Tensor],
        mask: Tensor | None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """Return [B, T, D] of x [B, T, D]."""
        x = x + self.attention(self.input_layernorm(x), rope, mask, cache)
        fed: Tensor = self.mlp(self.post_attention_layernorm(x))
        return x + fed


class Trunk(nn.Module):
    """LLaDA2.0 without its head."""

    _no_split_modules = ["Block"]  # noqa: RUF012
    gradient_checkpointing = False  # both are set by model.gradient_checkpointing_enable()
    _gradient_checkpointing_func: Callable[..., Tensor]

    def __init__(self, config: Llada2MoeConfig) -> None:
        super().__init__()
        self.config = config
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([Block(config, i) for i in range(config.num_hidden_layers)])
        self.norm = Qwen3RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(
        self,
        ids: Tensor,
        attention_mask: Tensor | None = None,
        kv_cache: KVCache | None = None,
        cache_positions: slice | None = None,
        copied: int = 0,
    ) -> Tensor:
        """Return the hidden states [B, T, D] of ids [B, T] (see Denoiser.trunk)."""
        first = 0 if cache_positions is None else cache_positions.start
        layout = Layout.of(self.config, first, first + ids.shape[1], copied)
        tables = rope_tables(layout.end, self.config.rotary_dim, self.config.rope_theta, ids.device)
        places = layout.positions(ids.device)
        rope, mask = (tables[0][places], tables[1][places]), layout.mask(attention_mask, ids.device)
        cache = None if kv_cache is None else LayerCache(kv_cache, cache_positions)
        x = self.word_embeddings(ids)
        # also in eval mode, in which training with dropout 0 runs
        is_recomputing = self.gradient_checkpointing and torch.is_grad_enabled()
        for block in self.layers:
            x = (
                self._gradient_checkpointing_func(block, x, rope, mask)
                if is_recomputing
                else block(x, rope, mask, cache)
            )
        hidden: Tensor = self.norm(x)
        return hidden


class Llada2MoeForMaskedLM(DecoderForMaskedLM):
    """LLaDA2.0 with its head."""

    config_class = Llada2MoeConfig
    trunk_class = Trunk
    embedding_name = "word_embeddings"

    def _init_weights(self, module: Any) -> None:  # noqa: ANN401  # transformers' own
        if isinstance(module, nn.Linear | nn.Embedding | Router):
            nn.init.normal_(module.weight, std=0.02)


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
