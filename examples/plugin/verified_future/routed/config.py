"""Settings of routed, an experimental method of our own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from dopsd.algorithms.common.config import CROSS_ENTROPY_BYTES, DISTILLATION_BYTES, Forwards
from dopsd.algorithms.d_opsd.config import METRICS as DISTILLATION
from dopsd.algorithms.trace_rl.config import METRICS as TRACE
from dopsd.algorithms.trace_rl.config import TraceRlConfig
from dopsd.core.metrics import Metric
from dopsd.core.settings import Count, NonNegative, Positive, Share

if TYPE_CHECKING:
    from dopsd.rollout.config import SamplingConfig


class RoutedConfig(TraceRlConfig):
    """Settings of a policy gradient together with distillation (own, experimental).

    The settings of groups, states and gains are those of TraceRL (arXiv 2509.06949), but for the KL
    penalty, in whose place there is an anchor to the initial policy.
    """

    kl_weight: NonNegative = 0.0  # weight of TraceRL's KL penalty
    teach: Literal["better", "wrong", "all"] = "better"  # better: of positive advantage, too
    distil_weight: NonNegative = 0.1  # beta, largest weight of the distillation
    distil_warmup: Share = 0.1  # share of the run's updates over which beta rises
    distil_decay: bool = True  # let beta fall linearly to 0 after that
    divergence: Literal["reverse_kl", "forward_kl", "jsd"] = "reverse_kl"  # to the teacher
    clip: Positive | None = 0.25  # scale a position's divergence down to this, nats; null: none
    by_confidence: bool = False  # weigh positions by exp(-H(q) / ln V) of the teacher q
    anchor_weight: NonNegative = 1e-3  # alpha, of the squared log-ratio to the initial policy
    reveal_ratio: Share = 0.5  # share of the verified future that the teacher is shown
    max_teacher_prompt: Count = 400  # teach wrong: keep the last tokens of the teacher's prompt

    @property
    def unseen_by_blocks(self) -> tuple[str, str] | None:
        """A teacher that is shown later blocks."""
        return ("distil_weight", "set it to 0") if self.distil_weight else None

    @property
    def depends_on_length(self) -> bool:
        """Whether beta depends on the number of updates."""
        return self.distil_weight > 0 and (self.distil_decay or self.distil_warmup > 0)

    @property
    def needs_reference(self) -> bool:
        """Whether the initial policy teaches, is the anchor, or that of the KL penalty."""
        return bool(self.distil_weight or self.anchor_weight) or super().needs_reference

    def forwards(self, sampling: SamplingConfig) -> Forwards:
        """Return what a problem costs: the teacher sees every state that is trained on."""
        cost = super().forwards(sampling)
        teacher = cost.trained if self.distil_weight else 0
        anchor = cost.trained // self.passes if self.anchor_weight else 0
        return cost._replace(scored=cost.scored + teacher + anchor)

    def logit_bytes(self, sampling: SamplingConfig) -> int:
        """Return the bytes of the logits of the predicted tokens, of student and teacher."""
        tokens = super().logit_bytes(sampling) // CROSS_ENTROPY_BYTES
        return tokens * (CROSS_ENTROPY_BYTES + (self.distil_weight > 0) * DISTILLATION_BYTES)


METRICS = TRACE | {
    "taught_states": Metric(
        "share",
        "states that learn from the teacher, of all states of the kept groups: their teacher is"
        " shown a verified future, and `teach` chooses their rollout",
        "verified_future.routed.algorithm.Routed.prepared",
    ),
    "divergence": Metric(
        "nats",
        "`divergence` of student and teacher before it is bounded, mean over the predicted tokens"
        " of taught states that the teacher is not shown",
        "verified_future.routed.algorithm.lesson",
    ),
    "scaled_positions": Metric(
        "share",
        "those predicted tokens of taught states whose divergence exceeds `clip` and is scaled"
        " down",
        "dopsd.algorithms.d_opsd.divergence.position_scale",
    ),
    "shared_mass": DISTILLATION["shared_mass"],
}
