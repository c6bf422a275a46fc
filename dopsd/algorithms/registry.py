"""Which algorithms there are: a folder each in dopsd/algorithms, and the entry points
`dopsd.algorithms`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dopsd.algorithms.common.config import AlgorithmConfig
from dopsd.core.registry import Registry

if TYPE_CHECKING:
    from dopsd.algorithms.common.base import Algorithm, AlgorithmContext

ALGORITHMS = Registry("dopsd.algorithms", "algorithm", AlgorithmConfig)


def load_algorithm(name: str, config: AlgorithmConfig, context: AlgorithmContext) -> Algorithm:
    """Return the algorithm `name` with its settings; its folder's algorithm.py has `build`."""
    from dopsd.algorithms.common.base import Algorithm  # heavy, and needed by training alone

    arguments = {"config": config, "context": context}
    algorithm: Algorithm = ALGORITHMS.make(name, "algorithm.build", Algorithm, **arguments)
    return algorithm
