"""d-OPSD: the student learns, at every denoising step, what the same model says when shown part of the answer's future.

arXiv 2606.18195, section 3; the defaults are the published code's.
"""

from __future__ import annotations

from dopsd.config import DOpsdConfig, Params
from dopsd.distilling import SelfDistillation, build_components
from dopsd.types import Policy, Task


def build(
    config: DOpsdConfig, params: Params, task: Task, policy: Policy, seed: int
) -> SelfDistillation:
    return SelfDistillation(config, *build_components(config, params, task, policy, seed))
