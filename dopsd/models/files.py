"""Files of a base model."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import safe_open

from dopsd.core.fingerprint import sha256
from dopsd.core.paths import ORIGIN

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dopsd.models.config import ModelConfig


def base_files(model: ModelConfig) -> list[Path]:
    """Return the files that define the base: weights, config, tokenizer and template.

    A change in any of them makes another model.
    """
    return sorted(
        path for path in Path(model.path).glob("*") if path.is_file() and path.name != ORIGIN
    )


def base_digest(model: ModelConfig) -> str:
    """Return 16 hex digits of the base's files, which identify it on any device."""
    names = "\n".join(f"{path.name} {sha256(path)}" for path in base_files(model))
    return hashlib.sha256(names.encode()).hexdigest()[:16]


def parameters(files: Iterable[Path]) -> int:
    """Return the number of values in the safetensors files among these."""
    total = 0
    for path in files:
        if path.suffix == ".safetensors" and path.is_file():
            with safe_open(path, "numpy") as weights:
                names = weights.keys()
                total += sum(math.prod(weights.get_slice(name).get_shape()) for name in names)
    return total
