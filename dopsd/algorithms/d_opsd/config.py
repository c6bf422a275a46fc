"""Settings of d-OPSD."""

from __future__ import annotations

from dopsd.algorithms.common.config import SelfDistillationConfig


class DOpsdConfig(SelfDistillationConfig):
    """On-policy self-distillation with the self-future as teacher (arXiv 2606.18195); each switch:
    README, d-OPSD.
    """
