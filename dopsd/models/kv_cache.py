"""Keys and values of a whole forward, reused by forwards of some positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class KVCache:
    """Keys and values of every layer, from the last whole forward and later windows.

    Attention is over all positions: once a token in the window changes, the kept keys and values
    outside it are no longer exact.

    Attributes:
        layers: keys and values [B, heads, T, width] of each layer; None before the first forward.
        states: [B, T, D] of the last whole forward, if the model's output is shifted.
    """

    def __init__(self, layers: int) -> None:
        self.layers: list[tuple[Tensor, Tensor] | None] = [None] * layers
        self.states: Tensor | None = None

    def joined(
        self, layer: int, k: Tensor, v: Tensor, cache_positions: slice | None
    ) -> tuple[Tensor, Tensor]:
        """Return the keys and values of the whole sequence, with those of the window replaced.

        Args:
            layer: index of the layer.
            k: [B, heads, W, width], keys of the window.
            v: [B, heads, W, width], values of the window.
            cache_positions: the window; None: `k` and `v` are the whole sequence, and replace all.

        Returns:
            Keys and values, each [B, heads, T, width].
        """
        kv_cache = self.layers[layer]
        if cache_positions is None or kv_cache is None:
            self.layers[layer] = (k, v)
            return k, v
        kv_cache[0][:, :, cache_positions], kv_cache[1][:, :, cache_positions] = k, v
        return kv_cache
