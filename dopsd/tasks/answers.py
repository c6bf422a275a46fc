"""Pieces of answer extraction that tasks share."""

from __future__ import annotations

import re


def inside(text: str, tag: str, length: int | None = None) -> str | None:
    """What stands in the first closed <tag>, white space dropped; None unless it is there with the wanted length."""
    match = re.search(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    if not match:
        return None
    found = re.sub(r"\s", "", match.group(1))
    return found if length in (None, len(found)) else None
