"""Keys and values of a whole forward, reused by forwards of some positions."""

import torch
from torch import Tensor


class KVCache:
    """Keys and values of every layer, from the last whole forward and later windows.

    Where attention is over all positions, the kept keys and values are no longer exact once a token
    in the window changes. Under block-causal attention those of finished blocks are: no token sees
    a later block. Such a cache grows, window by window.
    """

    def __init__(self, layers: int, grows: bool = False) -> None:
        self.grows = grows  # whether a window sees only what is before its end, and may be new
        # keys and values [B, heads, T, width] of each layer; None before the first forward
        self.layers: list[tuple[Tensor, Tensor] | None] = [None] * layers
        # [B, T, D] of the last whole forward, if the model's output is shifted
        self.hidden: Tensor | None = None

    def joined(
        self, layer: int, k: Tensor, v: Tensor, cache_positions: slice | None
    ) -> tuple[Tensor, Tensor]:
        """Return the keys and values of the whole sequence, with those of the window replaced.

        Args:
            k: [B, heads, W, width], keys of the window.
            v: [B, heads, W, width], values of the window.
            cache_positions: the window; None: `k` and `v` are the whole sequence, and replace all.

        Returns:
            Keys and values, each [B, heads, T, width]; of a cache that grows, up to the window's
            end.
        """
        kv_cache = self.layers[layer]
        if cache_positions is None or kv_cache is None:
            self.layers[layer] = (k, v)
            return k, v
        if self.grows:
            return self._grown(layer, k, v, cache_positions)
        kv_cache[0][:, :, cache_positions], kv_cache[1][:, :, cache_positions] = k, v
        return kv_cache

    def _grown(self, layer: int, k: Tensor, v: Tensor, window: slice) -> tuple[Tensor, Tensor]:
        kept = self.layers[layer]
        assert kept is not None
        if window.stop > kept[0].shape[2]:
            before = slice(0, window.start)
            kept = (
                torch.cat([kept[0][:, :, before], k], 2),
                torch.cat([kept[1][:, :, before], v], 2),
            )
            self.layers[layer] = kept
            return kept
        kept[0][:, :, window], kept[1][:, :, window] = k, v
        return kept[0][:, :, : window.stop], kept[1][:, :, : window.stop]

    def keep(self, rows: Tensor) -> None:
        """Keep these rows [N] of the batch alone."""
        self.layers = [
            None if kept is None else (kept[0][rows], kept[1][rows]) for kept in self.layers
        ]
