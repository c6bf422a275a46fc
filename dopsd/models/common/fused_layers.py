"""The layers of transformers' decoders with the fused kernels: norms, rotary embeddings, SwiGLU.

Llama's, Qwen2's and Qwen3's layers have the same parts under the same names. What a layer may have
in place of a feed-forward, such as experts, computes as before.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from dopsd.models.kernels.fused import FusedKernels

KERNELS = FusedKernels()
Layer = Any  # the modules of transformers' decoders have no common class


def fuse_layers(trunk: Layer) -> None:
    """Make a trunk compute its layers and its last norm with fused kernels."""
    for layer in trunk.layers:
        layer.forward = MethodType(layer_forward, layer)
    trunk.norm.forward = MethodType(normalised, trunk.norm)
    trunk.rotary_emb.forward = MethodType(tables, trunk.rotary_emb)


def tables(rotary: Layer, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return cos and sin [T, width] of positions [1, T], as the dtype of x holds them."""
    cos, sin = type(rotary).forward(rotary, x, positions)
    return cos[0].float(), sin[0].float()


def normalised(norm: Layer, x: Tensor) -> Tensor:
    """Return x [..., D] normalised by an RMSNorm of transformers."""
    return KERNELS.norm(x, norm.weight, norm.variance_epsilon)


def layer_forward(
    layer: Layer,
    x: Tensor,
    attention_mask: Tensor | None,
    position_embeddings: tuple[Tensor, Tensor],
    past_key_values: Layer = None,
) -> Tensor:
    """Return a layer's output [B, T, D] of x [B, T, D].

    Args:
        position_embeddings: cos and sin [T, width], the same for every row.
        past_key_values: a LayerCache, or None.
    """
    before, after = layer.input_layernorm, layer.post_attention_layernorm
    h, x = KERNELS.norm_beside(x, before.weight, before.variance_epsilon)
    h = attend(layer.self_attn, h, attention_mask, position_embeddings, past_key_values)
    h, x = KERNELS.add_norm(h, x, after.weight, after.variance_epsilon)
    return x + feed(layer.mlp, h)


def attend(
    attention: Layer,
    x: Tensor,
    mask: Tensor | None,
    rope: tuple[Tensor, Tensor],
    cache: Layer,
) -> Tensor:
    """Return the attention output [B, T, D] of normalised states x [B, T, D]."""
    heads = (*x.shape[:-1], -1, attention.head_dim)
    q, k, v = (
        project(x).view(heads) for project in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    if hasattr(attention, "q_norm"):  # Qwen3's
        q, k = normalised(attention.q_norm, q), normalised(attention.k_norm, k)
    q, k = KERNELS.rotate(q.transpose(1, 2), k.transpose(1, 2), *rope)
    v = v.transpose(1, 2)
    if cache is not None:
        k, v = cache.update(k, v, attention.layer_idx)
    compute = ALL_ATTENTION_FUNCTIONS[attention.config._attn_implementation]
    out, _ = compute(attention, q, k, v, mask, scaling=attention.scaling, is_causal=False)
    projected: Tensor = attention.o_proj(out.reshape(*x.shape[:-1], -1))
    return projected


def feed(mlp: Layer, x: Tensor) -> Tensor:
    """Return what a feed-forward, or the experts in its place, make of x [B, T, D]."""
    is_swiglu = hasattr(mlp, "gate_proj")
    fed: Tensor = (
        mlp.down_proj(KERNELS.swiglu(mlp.gate_proj(x), mlp.up_proj(x))) if is_swiglu else mlp(x)
    )
    return fed
