"""Names of other methods that an algorithm is by its settings: espo can be GDSD.

An algorithm's folder says so in variants.py, if it has one: `variant_of(config)` returns a key of
its `VARIANTS`, or an empty text for the algorithm itself. Training imports none of this.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from dopsd.algorithms.registry import ALGORITHMS
from dopsd.core.docstrings import first_line

if TYPE_CHECKING:
    from dopsd.algorithms.common.config import AlgorithmConfig


def variant_of(algorithm: str, config: AlgorithmConfig) -> str:
    """Return the name of the method that these settings are; empty: that of the algorithm."""
    if find_spec(ALGORITHMS.file(algorithm, "variants")) is None:
        return ""
    name: str = ALGORITHMS.member(algorithm, "variants", "variant_of")(config)
    return name


def how(algorithm: str, variant: str) -> str:
    """Return in a sentence how an algorithm works, or its variant."""
    if not variant:
        return first_line(ALGORITHMS.file(algorithm, "algorithm"))
    sentence: str = ALGORITHMS.member(algorithm, "variants", "VARIANTS")[variant]
    return sentence


def label(method: str, variant: str) -> str:
    """Return how reports name a method: `espo (GDSD)`, or `espo` without a variant."""
    return f"{method} ({variant})" if variant else method
