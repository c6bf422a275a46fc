"""Which attention kernel a Hopper card is assumed to take: flash without a mask, else efficient."""

from __future__ import annotations

import torch
from torch.nn import functional

from gpu.tensor import GpuTensor

aten = torch.ops.aten
ORIGINAL = functional.scaled_dot_product_attention


def attend(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, **options):
    """As scaled_dot_product_attention; true values are computed by the CPU's kernel."""
    if not isinstance(query, GpuTensor):
        return ORIGINAL(query, key, value, attn_mask, dropout_p, is_causal, **options)
    assert not options.get("enable_gqa"), "not modelled"
    scale = options.get("scale")
    if not query.inner.is_meta:
        bias = None if attn_mask is None else added(attn_mask, query.dtype)
        return aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, dropout_p, is_causal, attn_mask=bias, scale=scale
        )[0]
    if attn_mask is None and query.dtype in (torch.float16, torch.bfloat16):
        return aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, False, scale=scale
        )[0]
    bias = None if attn_mask is None else bias_of(attn_mask, query, key)
    return aten._scaled_dot_product_efficient_attention(
        query, key, value, bias, query.requires_grad, dropout_p, is_causal, scale=scale
    )[0]


def added(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a boolean mask as numbers to add to the scores."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask.logical_not(), -torch.inf)


def bias_of(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Return a mask as the efficient kernel takes it: rows of a multiple of 8 numbers."""
    mask, length = added(mask, query.dtype), mask.shape[-1]
    if length % 8:
        mask = functional.pad(mask, (0, 8 - length % 8))[..., :length]
    return mask.expand(*query.shape[:3], key.shape[2])


def use() -> None:
    """Let models call `attend`."""
    functional.scaled_dot_product_attention = attend
