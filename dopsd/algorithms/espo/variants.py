"""Methods that espo is by its objective."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dopsd.algorithms.espo.config import EspoConfig

OBJECTIVES = {"squared": "GDSD", "token": "coupled-GRPO"}
VARIANTS = {
    "GDSD": (
        "GDSD: the change of a whole completion's log-probability is drawn towards its advantage,"
        " by a squared error; log-probabilities are estimated from pairs of masks."
    ),
    "coupled-GRPO": (
        "coupled-GRPO: policy gradient with a probability ratio for each token; log-probabilities"
        " are estimated from pairs of masks that complement each other."
    ),
}


def variant_of(config: EspoConfig) -> str:
    """Return the name of the method; empty: ESPO."""
    return OBJECTIVES.get(config.objective, "")
