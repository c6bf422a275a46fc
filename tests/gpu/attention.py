"""Attention of the pretended device, by the CPU's kernel."""

from __future__ import annotations

import torch
from torch.nn import functional

from gpu.tensor import GpuTensor

ORIGINAL = functional.scaled_dot_product_attention


def attend(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, **options):
    """As scaled_dot_product_attention."""
    if not isinstance(query, GpuTensor):
        return ORIGINAL(query, key, value, attn_mask, dropout_p, is_causal, **options)
    assert not options.get("enable_gqa"), "not modelled"
    bias = attn_mask
    if bias is not None and bias.dtype == torch.bool:
        added = torch.zeros_like(bias, dtype=query.dtype)
        bias = added.masked_fill_(bias.logical_not(), -torch.inf)
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, dropout_p, is_causal, attn_mask=bias, scale=options.get("scale")
    )[0]


def use() -> None:
    """Let models call `attend`."""
    functional.scaled_dot_product_attention = attend
