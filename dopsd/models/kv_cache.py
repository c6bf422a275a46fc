"""Keys and values of a whole forward, kept for forwards of some positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class KVCache:
    """Keys and values of every layer at the last whole forward, where a window's own were not
    computed again since.

    Attention is over all positions, so that those outside the window are no longer exact once a
    token in it has changed.
    """

    def __init__(self, layers: int) -> None:
        self.layers: list[tuple[Tensor, Tensor] | None] = [None] * layers
        self.states: Tensor | None = None  # [B, T, D] of that forward, where the output is shifted

    def joined(
        self, layer: int, k: Tensor, v: Tensor, cache_positions: slice | None
    ) -> tuple[Tensor, Tensor]:
        """k and v [B, heads, W, width] of the window among those of the whole sequence; without a
        window they replace all.
        """
        kv_cache = self.layers[layer]
        if cache_positions is None or kv_cache is None:
            self.layers[layer] = (k, v)
            return k, v
        kv_cache[0][:, :, cache_positions], kv_cache[1][:, :, cache_positions] = k, v
        return kv_cache
