"""Which attention kernel a Hopper card is assumed to take: flash without a mask, else efficient."""

from __future__ import annotations

import torch
from torch.nn import functional

from gpu.tensor import GpuTensor

aten = torch.ops.aten
ORIGINAL = functional.scaled_dot_product_attention


def attend(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, **options):
    """As scaled_dot_product_attention, where the numbers are unknown."""
    if not isinstance(query, GpuTensor) or not query.inner.is_meta:
        return ORIGINAL(query, key, value, attn_mask, dropout_p, is_causal, **options)
    scale = options.get("scale")
    if attn_mask is None and query.dtype in (torch.float16, torch.bfloat16):
        return aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, False, scale=scale
        )[0]
    bias = None if attn_mask is None else bias_of(attn_mask, query, key)
    return aten._scaled_dot_product_efficient_attention(
        query, key, value, bias, query.requires_grad, dropout_p, is_causal, scale=scale
    )[0]


def bias_of(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Return a mask as the efficient kernel takes it: added numbers, in rows of a multiple of 8."""
    if mask.dtype == torch.bool:
        zeros = torch.zeros_like(mask, dtype=query.dtype)
        mask = zeros.masked_fill_(mask.logical_not(), -torch.inf)
    length = mask.shape[-1]
    if length % 8:
        mask = functional.pad(mask, (0, 8 - length % 8))[..., :length]
    return mask.expand(*query.shape[:3], key.shape[2])


def use() -> None:
    """Let models call `attend`."""
    functional.scaled_dot_product_attention = attend
