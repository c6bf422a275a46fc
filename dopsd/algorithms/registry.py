"""Which algorithms there are: a folder each in dopsd/algorithms, and the entry points `dopsd.algorithms`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dopsd.algorithms.common.config import AlgorithmConfig
from dopsd.core.registry import Registry

if TYPE_CHECKING:
    from dopsd.algorithms.common.base import AlgorithmContext, Method

ALGORITHMS = Registry("dopsd.algorithms", "algorithm", AlgorithmConfig)


def load_algorithm(name: str, config: AlgorithmConfig, context: AlgorithmContext) -> Method:
    """Return the algorithm `name` with its settings; its folder's algorithm.py has `build`."""
    from dopsd.algorithms.common.base import Method  # heavy, and needed by training alone

    return ALGORITHMS.make(name, "algorithm.build", Method, config=config, context=context)
