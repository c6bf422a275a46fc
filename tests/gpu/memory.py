"""Follow the bytes that the pretended device holds, by the life of each storage."""

from __future__ import annotations

import weakref

import torch

ROUNDING = 512  # bytes; the caching allocator rounds every block up to a multiple


class Memory:
    """Bytes of live storages: now, at most since `reset_peak`, and of the card."""

    def __init__(self) -> None:
        self.held = self.peak = 0
        self.capacity: int | None = None  # endless
        self.sizes: dict[int, int] = {}  # bytes by address of the storage

    def follow(self, tensor: torch.Tensor) -> None:
        """Count the storage of a tensor until it dies."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.sizes:
            return
        size = -(-storage.nbytes() // ROUNDING) * ROUNDING
        if self.capacity is not None and self.held + size > self.capacity:
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {size} bytes, {self.held} are held"
            )
        self.sizes[key] = size
        self.held += size
        self.peak = max(self.peak, self.held)
        weakref.finalize(storage, self._free, key).atexit = False

    def _free(self, key: int) -> None:
        self.held -= self.sizes.pop(key, 0)

    def reset_peak(self) -> None:
        self.peak = self.held
