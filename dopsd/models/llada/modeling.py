"""LLaDA as a native transformers model, with the tensor names of the published checkpoints.

A Llama-like stack without causal mask: position i of the output predicts token i (arXiv
2502.09992). Importing this module registers model_type "llada" with AutoConfig and
AutoModelForMaskedLM. The embedded model is the same class.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from dopsd.models.common.decoder import DecoderForMaskedLM
from dopsd.models.kernels.operators import Kernels, rope_tables
from dopsd.models.kv_cache import KVCache
from dopsd.models.llada.configuration import LladaConfig


class RMSNorm(nn.Module):
    """The scale of a norm, and how it is computed."""

    kernels = Kernels()

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x [..., width]."""
        return self.kernels.norm(x, self.weight, self.eps)

    def beside(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return x normalised, and x for its other use."""
        return self.kernels.norm_beside(x, self.weight, self.eps)

    def after_adding(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Return the normalised sum of x and residual [..., width], and the sum."""
        return self.kernels.add_norm(x, residual, self.weight, self.eps)


Past = tuple[KVCache, slice | None] | None


class LladaBlock(nn.Module):
    """Attention over the whole sequence, then a SwiGLU feed-forward; both pre-normalised."""

    kernels = Kernels()
    is_causal = False  # read by transformers' attention functions, like num_key_value_groups

    def __init__(self, config: LladaConfig, layer: int) -> None:
        super().__init__()
        width, head = config.d_model, config.d_model // config.n_heads
        self.config, self.layer = config, layer
        self.heads, self.kv_heads = config.n_heads, config.n_kv_heads
        self.num_key_value_groups = self.heads // self.kv_heads
        self.attn_norm = RMSNorm(width, config.rms_norm_eps)
        self.ff_norm = RMSNorm(width, config.rms_norm_eps)
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, head * self.kv_heads, bias=False)
        self.v_proj = nn.Linear(width, head * self.kv_heads, bias=False)
        self.attn_out = nn.Linear(width, width, bias=False)
        self.ff_proj = nn.Linear(width, config.mlp_hidden_size, bias=False)
        self.up_proj = nn.Linear(width, config.mlp_hidden_size, bias=False)
        self.ff_out = nn.Linear(config.mlp_hidden_size, width, bias=False)

    def attend(
        self, x: Tensor, rope: tuple[Tensor, Tensor], mask: Tensor | None, past: Past
    ) -> Tensor:
        """Return the attention output [B, T, D] of normalised states x [B, T, D]."""
        size, length, _ = x.shape
        q = self.q_proj(x).view(size, length, self.heads, -1).transpose(1, 2)
        k = self.k_proj(x).view(size, length, self.kv_heads, -1).transpose(1, 2)
        v = self.v_proj(x).view(size, length, self.kv_heads, -1).transpose(1, 2)
        attention = ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation]
        q, k = self.kernels.rotate(q, k, *rope)
        if past is not None:
            k, v = past[0].joined(self.layer, k, v, past[1])
        out, _ = attention(self, q, k, v, mask, is_causal=False)  # [B, T, heads, width]
        projected: Tensor = self.attn_out(out.reshape(size, length, -1))
        return projected

    def forward(
        self, x: Tensor, rope: tuple[Tensor, Tensor], mask: Tensor | None, past: Past = None
    ) -> Tensor:
        """Return the block's output [B, T, D] of x [B, T, D]."""
        h, x = self.attn_norm.beside(x)
        h, x = self.ff_norm.after_adding(self.attend(h, rope, mask, past), x)
        fed: Tensor = self.ff_out(self.kernels.swiglu(self.ff_proj(h), self.up_proj(h)))
        return x + fed


class LladaTrunk(nn.Module):
    """LLaDA without the head's projection: ids to normalised hidden states."""

    gradient_checkpointing = False  # both are set by model.gradient_checkpointing_enable()
    _gradient_checkpointing_func: Callable[..., Tensor]
    _no_split_modules = ["LladaBlock"]  # noqa: RUF012

    def __init__(self, config: LladaConfig) -> None:
        super().__init__()
        self.config = config
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(config.embedding_size, config.d_model),
                "blocks": nn.ModuleList([LladaBlock(config, i) for i in range(config.n_layers)]),
                "ln_f": RMSNorm(config.d_model, config.rms_norm_eps),
            }
        )
        if not config.weight_tying:
            self.transformer["ff_out"] = nn.Linear(
                config.d_model, config.embedding_size, bias=False
            )

    def forward(
        self,
        ids: Tensor,
        attention_mask: Tensor | None = None,
        kv_cache: KVCache | None = None,
        cache_positions: slice | None = None,
        copied: int = 0,
    ) -> Tensor:
        """Return the hidden states [B, T, D] of ids [B, T]; for the arguments see Denoiser.trunk.

        Flash attention takes a mask [B, T] to remove padding, sdpa [B, 1, 1, T]; both boolean.
        """
        assert not copied, "every token sees every other"
        width = self.config.d_model // self.config.n_heads
        first, end = (
            (0, ids.shape[1])
            if cache_positions is None
            else (cache_positions.start, cache_positions.stop)
        )
        cos, sin = rope_tables(end, width, self.config.rope_theta, ids.device)
        rope = cos[first:], sin[first:]
        mask, is_flash = attention_mask, self.config._attn_implementation.startswith("flash")
        if mask is not None and not is_flash:
            mask = mask[:, None, None, :].bool()
        # also in eval mode, in which training with dropout 0 runs
        is_recomputing = self.gradient_checkpointing and torch.is_grad_enabled()
        x = self.transformer["wte"](ids)
        past = None if kv_cache is None else (kv_cache, cache_positions)
        for block in self.transformer["blocks"].children():
            x = (
                self._gradient_checkpointing_func(block, x, rope, mask)
                if is_recomputing
                else block(x, rope, mask, past)
            )
        hidden: Tensor = self.transformer["ln_f"](x)
        return hidden


class LladaForMaskedLM(DecoderForMaskedLM):
    """LLaDA with its head, which is a part of the trunk."""

    config_class = LladaConfig
    trunk_class = LladaTrunk

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    def blocks(self) -> nn.ModuleList:
        """Return the blocks, first to last."""
        blocks: nn.ModuleList = self.model.transformer["blocks"]
        return blocks

    def fuse(self) -> None:
        """Compute norms, rotary embeddings and SwiGLU with fused kernels."""
        from dopsd.models.kernels.fused import FusedKernels

        for module in self.modules():
            if isinstance(module, RMSNorm | LladaBlock):
                module.kernels = FusedKernels()
        self.is_fused = True

    def get_input_embeddings(self) -> nn.Module:
        """Return the token embedding."""
        embedding: nn.Module = self.model.transformer["wte"]
        return embedding
