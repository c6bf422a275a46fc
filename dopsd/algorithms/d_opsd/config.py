"""Settings of d-OPSD."""

from __future__ import annotations

from dopsd.algorithms.common.distillation_config import SelfDistillationConfig


class DOpsdConfig(SelfDistillationConfig):
    """Settings of d-OPSD: on-policy self-distillation from the self-future (arXiv 2606.18195)."""
