"""Algorithms: folders of dopsd/algorithms, and packages of the entry points `dopsd.algorithms`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dopsd.algorithms.common.config import AlgorithmConfig
from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError
from dopsd.core.registry import Registry

if TYPE_CHECKING:
    from dopsd.algorithms.common.base import Algorithm, AlgorithmContext

ALGORITHMS = Registry("dopsd.algorithms", "algorithm", AlgorithmConfig)


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
        DopsdError: if there is no such algorithm, its folder is incomplete, or the base's attention
            hides what its teacher is shown.
    """
    from dopsd.algorithms.common.base import Algorithm  # imports torch; only training needs it

    if context.policy.attention_pattern == "block_causal" and (fault := blocks_fault(name, config)):
        raise DopsdError(fault, code=Code.CONTRADICTION)
    arguments = {"config": config, "context": context}
    algorithm: Algorithm = ALGORITHMS.make(name, "algorithm.build", Algorithm, **arguments)
    return algorithm
