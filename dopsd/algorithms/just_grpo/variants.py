"""What else just_grpo is by its positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dopsd.algorithms.just_grpo.config import JustGrpoConfig

VARIANTS = {
    "fork": (
        "fork of JustGRPO: rollouts are decoded with a confidence threshold, and only the steps at"
        " which no token reached it are scored."
    )
}


def variant_of(config: JustGrpoConfig) -> str:
    """Return `fork` where rollouts have a threshold; empty: JustGRPO."""
    return "fork" if config.positions == "fallback" else ""
