"""Methods that trace_rl is by its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dopsd.algorithms.trace_rl.config import TraceRlConfig

VARIANTS = {
    "CJ-GRPO": (
        "CJ-GRPO: policy gradient that scores each token in the very state in which the sampler"
        " committed it, with a penalty towards the initial policy."
    ),
    "RLDF": (
        "RLDF: policy gradient on a few states of each trajectory, drawn more often where they"
        " surprise the policy; masked tokens that it is sure of are predicted too."
    ),
}


def variant_of(config: TraceRlConfig) -> str:
    """Return the name of the method; empty: TraceRL."""
    if config.states and config.confident is not None and config.reduction == "token":
        return "RLDF"
    is_plain = not config.states and config.confident is None
    return "CJ-GRPO" if is_plain and config.shrink == 1 and config.kl_to == "base" else ""
