"""Settings of TraceRL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from dopsd.algorithms.common.config import Forwards
from dopsd.algorithms.common.trace_config import TraceConfig
from dopsd.core.settings import Share

if TYPE_CHECKING:
    from dopsd.rollout.config import SamplingConfig


class TraceRlConfig(TraceConfig):
    """Settings of TraceRL (arXiv 2509.06949, published code for LLaDA).

    With `shrink: 1` it is CJ-GRPO, and with `states`, `confident` and `reduction: token` RLDF. The
    settings of credit are our own.
    """

    credit: Share | None = None  # weight of a teacher's credit for each token; null: no teacher
    credit_range: Annotated[float, Field(gt=0, lt=1)] = 0.2  # the credit is clipped to 1 +- this
    credit_decay: bool = False  # let credit fall linearly to 0 over the run
    reveal_ratio: Share = 0.5  # share of the verified future that the teacher of credit is shown

    @property
    def unseen_by_blocks(self) -> tuple[str, str] | None:
        """A teacher that is shown later blocks."""
        return ("credit", "set it to null") if self.credit is not None else None

    @property
    def depends_on_length(self) -> bool:
        """Whether the weight of the credit depends on the number of updates."""
        return self.credit is not None and self.credit_decay

    @property
    def needs_reference(self) -> bool:
        """Whether the KL penalty is to the initial policy, or this is the teacher."""
        return self.credit is not None or super().needs_reference

    def forwards(self, sampling: SamplingConfig) -> Forwards:
        """Return what a problem costs: with credit the teacher sees the states, too."""
        cost = super().forwards(sampling)
        teacher = 0 if self.credit is None else cost.trained // self.passes
        return cost._replace(scored=cost.scored + teacher)
