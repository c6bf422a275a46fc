"""Which algorithms there are: a folder each in dopsd/algorithms, and the entry points `dopsd.algorithms`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dopsd.algorithms.common.config import AlgorithmConfig
from dopsd.core.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable

    from dopsd.algorithms.common.base import Algorithm, AlgorithmContext

ALGORITHMS = Registry("dopsd.algorithms", "algorithm", AlgorithmConfig)


def load_algorithm(name: str, config: AlgorithmConfig, context: AlgorithmContext) -> Algorithm:
    """Return the algorithm `name` with its settings; its folder's algorithm.py has `build`."""
    build: Callable[[AlgorithmConfig, AlgorithmContext], Algorithm] = ALGORITHMS.member(
        name, "algorithm", "build"
    )
    return build(config, context)
