"""Settings of AR-style OPSD."""

from typing import ClassVar, Literal

from dopsd.algorithms.d_opsd.config import METRICS as DISTILLATION
from dopsd.algorithms.d_opsd.config import DOpsdConfig
from dopsd.core.settings import Count, Share


class ArOpsdConfig(DOpsdConfig):
    """Settings of AR-style OPSD (arXiv 2606.18195, section 4).

    The teacher's prompt contains a reference solution.
    """

    attempts: Count = 1  # attempts per problem
    keep: Literal["correct", "all"] = "all"  # all: also train on failed attempts
    reveal_ratio: Share = (
        0.0  # share of the future that the teacher is shown in addition to the solution
    )
    max_teacher_prompt: Count = 400  # tokens of the teacher's prompt, the last ones
    wants_solutions: ClassVar[bool] = True


METRICS = DISTILLATION
