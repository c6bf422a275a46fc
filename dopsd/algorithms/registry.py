"""Algorithms: folders of dopsd/algorithms, and packages of the entry points `dopsd.algorithms`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dopsd.algorithms.common.config import AlgorithmConfig
from dopsd.core.registry import Registry

if TYPE_CHECKING:
    from dopsd.algorithms.common.base import Algorithm, AlgorithmContext

ALGORITHMS = Registry("dopsd.algorithms", "algorithm", AlgorithmConfig)
# algorithms that derive from others, whose folders they import and whose recipes count as theirs
FAMILIES = {
    "ar_opsd": ("d_opsd",),
    "infill": ("d_opsd", "trace_rl"),
}


def blocks_fault(name: str, config: AlgorithmConfig) -> str | None:
    """Return the setting that teaches a block-causal base nothing, as a message, or None.

    Args:
        name: the algorithm.
        config: its settings.
    """
    if config.unseen_by_blocks is None:
        return None
    setting, remedy = config.unseen_by_blocks
    return (
        f"method.{name}.{setting} teaches nothing with this base: under its block-causal attention"
        f" no token sees a later block; {remedy}"
    )


def load_algorithm(name: str, config: AlgorithmConfig, context: AlgorithmContext) -> Algorithm:
    """Return the algorithm `name`; `build` in the folder's algorithm.py makes it.

    Args:
        name: the folder, or the name of an entry point.
        config: settings of the algorithm.
        context: task, policy and lengths of the run.

    Raises:
        DopsdError: if there is no such algorithm, or its folder is incomplete.
    """
    from dopsd.algorithms.common.base import Algorithm  # imports torch; only training needs it

    arguments = {"config": config, "context": context}
    algorithm: Algorithm = ALGORITHMS.make(name, "algorithm.build", Algorithm, **arguments)
    return algorithm
