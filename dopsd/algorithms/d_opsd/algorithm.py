"""d-OPSD: learn at every denoising step from the same model that is shown part of the future.

arXiv 2606.18195, section 3; the defaults are those of the published code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dopsd.algorithms.common.distillation import SelfDistillation, build_components

if TYPE_CHECKING:
    from dopsd.algorithms.common.base import AlgorithmContext
    from dopsd.algorithms.d_opsd.config import DOpsdConfig


def build(config: DOpsdConfig, context: AlgorithmContext) -> SelfDistillation:
    """Return the algorithm with its settings and the run's context."""
    return SelfDistillation(config, *build_components(config, context))
