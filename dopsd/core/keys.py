"""Keys of random draws, for code that needs no torch: `rng` draws the numbers."""

from __future__ import annotations

import hashlib


def key_from(*parts: str | int) -> int:
    """Return a signed 64-bit key of names and numbers."""
    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)
