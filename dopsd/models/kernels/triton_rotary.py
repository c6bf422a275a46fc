"""Rotary embeddings as a Triton kernel.

liger-kernel has one that overwrites its arguments, of which autograd would need copies.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def rotary_kernel(
    x,
    y,
    cos,
    sin,
    length,
    x_row,
    x_token,
    x_head,
    INVERSE: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    HEADS_2: tl.constexpr,
    HALF_2: tl.constexpr,
):
    """Rotate the heads of one token of x [B, T, heads, 2 HALF] into y.

    x_* are x's strides; y is contiguous; *_2 are the next powers of two.
    """
    i = tl.program_id(0).to(tl.int64)
    token = i % length
    heads, lanes = tl.arange(0, HEADS_2)[:, None], tl.arange(0, HALF_2)[None, :]
    angle = token * (2 * HALF) + lanes
    c = tl.load(cos + angle, mask=lanes < HALF, other=0)
    s = tl.load(sin + angle, mask=lanes < HALF, other=0)
    if INVERSE:
        s = -s
    mask = (heads < HEADS) & (lanes < HALF)
    at = x + (i // length) * x_row + token * x_token + heads * x_head + lanes
    first = tl.load(at, mask=mask, other=0).to(tl.float32)
    second = tl.load(at + HALF, mask=mask, other=0).to(tl.float32)
    at = y + (i * HEADS + heads) * (2 * HALF) + lanes
    tl.store(at, first * c - second * s, mask=mask)
    tl.store(at + HALF, second * c + first * s, mask=mask)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool) -> Tensor:
    """Return x [B, T, heads, width] rotated, contiguous; see operators.rotary."""
    x = x if x.stride(-1) == 1 else x.contiguous()
    size, length, heads, width = x.shape
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rotary_kernel[(size * length,)](
        x,
        y,
        cos,
        sin,
        length,
        *x.stride()[:3],
        INVERSE=inverse,
        **sizes(heads, width // 2),
        enable_fp_fusion=False,  # round products as torch does
    )
    return y


def sizes(heads: int, half: int) -> dict[str, int]:
    """Return the kernel's sizes for these heads and this half of a head's width."""
    padded = {"HEADS_2": triton.next_power_of_2(heads), "HALF_2": triton.next_power_of_2(half)}
    return {"HEADS": heads, "HALF": half} | padded
