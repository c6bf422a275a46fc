"""d-OPSD: the student learns, at every denoising step, what the same model says when shown part of
the answer's future.

arXiv 2606.18195, section 3; the defaults are the published code's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dopsd.algorithms.common.distillation import SelfDistillation, build_components

if TYPE_CHECKING:
    from dopsd.algorithms.common.base import AlgorithmContext
    from dopsd.algorithms.d_opsd.config import DOpsdConfig


def build(config: DOpsdConfig, context: AlgorithmContext) -> SelfDistillation:
    return SelfDistillation(config, *build_components(config, context))
