"""Settings of credited_trace_rl, an experimental method of our own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from dopsd.algorithms.common.config import Forwards
from dopsd.algorithms.trace_rl.config import METRICS as TRACE
from dopsd.algorithms.trace_rl.config import TraceRlConfig
from dopsd.core.metrics import Metric
from dopsd.core.settings import Share

if TYPE_CHECKING:
    from dopsd.rollout.config import SamplingConfig


class CreditedTraceRlConfig(TraceRlConfig):
    """Settings of TraceRL (arXiv 2509.06949) with credit for each token (own, experimental)."""

    credit: Share = 0.5  # l, weight of the teacher's credit
    credit_range: Annotated[float, Field(gt=0, lt=1)] = 0.2  # e, the credit is clipped to 1 +- this
    credit_decay: bool = False  # let credit fall linearly to 0 over the run
    reveal_ratio: Share = 0.5  # share of the verified future that the teacher is shown

    @property
    def unseen_by_blocks(self) -> tuple[str, str] | None:
        """A teacher that is shown later blocks."""
        return "credit", "run trace_rl"

    @property
    def depends_on_length(self) -> bool:
        """Whether the weight of the credit depends on the number of updates."""
        return self.credit_decay

    @property
    def needs_reference(self) -> bool:
        """Whether the method computes with the initial policy: it is the teacher."""
        return True

    def forwards(self, sampling: SamplingConfig) -> Forwards:
        """Return what a problem costs: the teacher sees the states, too."""
        cost = super().forwards(sampling)
        return cost._replace(scored=cost.scored + cost.trained // self.passes)


METRICS = TRACE | {
    "credited": Metric(
        "share",
        "predicted tokens for which the teacher is shown a verified future, and so can change the"
        " advantage",
        "verified_future.teacher.shown_positions",
    ),
}
