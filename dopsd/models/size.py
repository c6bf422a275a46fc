"""Count the parameters of weights on disk, without loading them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from safetensors import safe_open

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def parameters(files: Iterable[Path]) -> int:
    """Return the number of values in the safetensors files among these."""
    total = 0
    for path in files:
        if path.suffix == ".safetensors" and path.is_file():
            with safe_open(path, "numpy") as weights:
                names = weights.keys()
                total += sum(math.prod(weights.get_slice(name).get_shape()) for name in names)
    return total
