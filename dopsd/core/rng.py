"""Random numbers as a pure function of a key: independent of device, batch and resume.

A key is folded from what names the draw (seed, collect, problem, attempt, step, position,
vocabulary entry) with the splitmix64 finaliser. No generator has a state that a crash could lose.
"""

import torch
from torch import Tensor

from dopsd.core.fingerprint import key_from as key_from

GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit integer
FIRST = -4658895280553007687  # 0xBF58476D1CE4E5B9
SECOND = -7723592293110705685  # 0x94D049BB133111EB


def _shift(value: Tensor, bits: int) -> Tensor:
    """Shift right logically: torch's own shift copies the sign bit."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def fold_in(key: Tensor, part: Tensor | int) -> Tensor:
    """Mix one more part into a key.

    Args:
        key: int64, of any shape.
        part: an int, or an int64 tensor that broadcasts with `key`.

    Returns:
        int64, of the broadcast shape.
    """
    mixed = (key ^ (part * GOLDEN if isinstance(part, Tensor) else _wrap(part * GOLDEN))) + GOLDEN
    mixed = (mixed ^ _shift(mixed, 30)) * FIRST
    mixed = (mixed ^ _shift(mixed, 27)) * SECOND
    return mixed ^ _shift(mixed, 31)


def _wrap(value: int) -> int:
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def uniform(key: Tensor) -> Tensor:
    """Return a float32 in the open interval (0, 1) for each key.

    The number has 23 bits, so that neither log(u) nor log(-log(u)) overflows.
    """
    return (_shift(key, 41).to(torch.float32) + 0.5) * 2.0**-23


def bfloat16_uniform(u: Tensor) -> Tensor:
    """Return draws with the distribution of torch.rand in bfloat16.

    Torch rounds a float32 draw to the nearest bfloat16, and gives 0 where that is 1. So 0 has
    probability 1/512, and draws below 0.5 have a finer grid than 1/256. On a CPU, torch 2.11
    draws multiples of 1/256 instead.

    Args:
        u: float32 draws in (0, 1).
    """
    rounded = u.bfloat16()
    return rounded.masked_fill_(rounded == 1, 0)


def uniform_table(keys: Tensor, columns: int) -> Tensor:
    """Return uniform(fold_in(keys[:, None], column)) for every column, computed in place.

    Args:
        keys: [N], int64.

    Returns:
        [N, columns], float32.
    """
    mixed = keys[:, None] ^ (torch.arange(columns, device=keys.device) * GOLDEN)
    mixed += GOLDEN
    buffer = torch.empty_like(mixed)

    def shifted(bits: int) -> Tensor:
        return torch.bitwise_right_shift(mixed, bits, out=buffer).bitwise_and_(
            (1 << (64 - bits)) - 1
        )

    mixed.bitwise_xor_(shifted(30)).mul_(FIRST)
    mixed.bitwise_xor_(shifted(27)).mul_(SECOND)
    mixed.bitwise_xor_(shifted(31))
    return shifted(41).to(torch.float32).add_(0.5).mul_(2.0**-23)
