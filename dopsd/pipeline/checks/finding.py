"""What a check of `dopsd doctor` saw."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """What a check saw; `is_fit` None: it may matter or not."""

    name: str
    is_fit: bool | None
    said: str
    advice: str = ""
