"""Settings of AR-style OPSD."""

from __future__ import annotations

from typing import Literal

from dopsd.algorithms.common.config import SelfDistillationConfig
from dopsd.core.settings import Count, Share


class ArOpsdConfig(SelfDistillationConfig):
    """AR-style on-policy self-distillation: a reference solution in the teacher's prompt (arXiv
    2606.18195, section 4).
    """

    attempts: Count = 1
    keep: Literal["correct", "all"] = "all"
    reveal_ratio: Share = 0.0
    max_teacher_prompt: Count = 400

    @property
    def wants_solutions(self) -> bool:
        return True
