"""Files of a base model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dopsd.core.paths import ORIGIN

if TYPE_CHECKING:
    from dopsd.models.config import ModelConfig


def base_files(model: ModelConfig) -> list[Path]:
    """Return the files that define the base: weights, config, tokenizer and template.

    A change in any of them makes another model.
    """
    return sorted(
        path for path in Path(model.path).glob("*") if path.is_file() and path.name != ORIGIN
    )
