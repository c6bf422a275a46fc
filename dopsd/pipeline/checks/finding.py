"""Result of one check of `dopsd doctor`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """Result of one check: a row of the table.

    Attributes:
        name: First column.
        is_fit: True: ready; False: not ready, `dopsd doctor` fails; None: may matter or not.
        message: What the check saw.
        advice: What to do, empty if nothing.
    """

    name: str
    is_fit: bool | None
    message: str
    advice: str = ""
