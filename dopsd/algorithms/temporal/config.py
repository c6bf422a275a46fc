"""Settings of temporal self-distillation."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dopsd.algorithms.common.config import GROUPS, Forwards, IteratedGroupConfig, TrainOverrides
from dopsd.core.metrics import Metric
from dopsd.core.settings import LARGEST, Count, Natural, Positive
from dopsd.models.config import AdapterConfig
from dopsd.rollout.config import SamplingConfig

LOSS_BYTES = 28  # of an entry of the logits in the loss


class TemporalConfig(IteratedGroupConfig):
    """Settings of temporal self-distillation: later states of a rollout teach earlier ones.

    The defaults are those of TSD (arXiv 2609.15177), of which only summaries were read. The
    published code of dOPSD (arXiv 2607.04428, another paper than d-OPSD) has `target: finished`,
    `divergence: reverse_kl`, `teacher: base`, and no loss of wrong rollouts (`reward: correct` and
    `weight: reward`). Its options are `all_future` or `snapshot`, and a loss of all
    (`weight: none`). Its teacher sees the finished token itself too; here it is masked.
    """

    group_size: Annotated[int, Field(ge=1, le=LARGEST)] = 4  # rollouts per problem
    reward: Literal["task", "correct"] = "correct"  # the verifier's score: the task's, or 1 or 0
    weight: Literal["reward", "none"] = "reward"  # of a rollout in the loss; none: 1
    length_target: Count | None = None  # tokens after which the weight falls; null: it does not
    iterations: Count = 4  # updates per collect, each with newly drawn states
    states: Natural = 1  # states drawn uniformly from each rollout in an update; 0: all
    positions: Literal["masked", "committed"] = (
        "masked"  # which are trained; committed: by the step
    )
    target: Literal["commit", "snapshot", "all_future", "finished"] = (
        "commit"  # which later state teaches; finished: all of the answer but the token itself
    )
    gap: Count = 1  # of target snapshot: steps between the state and the one that teaches it
    teacher: Literal["live", "base", "ema"] = "live"  # the policy that sampled, or others' weights
    ema_decay: Annotated[float, Field(ge=0, lt=1)] = 0.99  # of the ema teacher, per update
    top_k: Count = 20  # tokens of a target that are kept, with the probability of all others
    divergence: Literal["jsd", "forward_kl", "reverse_kl"] = "jsd"  # student to target
    jsd_beta: Annotated[float, Field(gt=0, lt=1)] = 0.5  # weight of the target in jsd's mixture
    clip: Positive | None = None  # bound of a position's divergence, in nats; null: none
    train: TrainOverrides = TrainOverrides(  # what this method changes in section train
        learning_rate=3e-6, lora=AdapterConfig(r=64, alpha=32, dropout=0.05)
    )

    @property
    def keeps_commits(self) -> bool:
        """Whether the sampler keeps the targets, so that no forward makes them."""
        return (self.target, self.teacher) == ("commit", "live")

    def forwards(self, sampling: SamplingConfig) -> Forwards:
        """Return what a problem costs: the teacher sees the states of a rollout once, if at all.

        Of a finished answer it sees one for each token.
        """
        drawn = self.iterations * min(sampling.steps, self.states or sampling.steps)
        seen = sampling.gen_length if self.target == "finished" else sampling.steps
        parts = 0 if self.keeps_commits else seen, drawn
        return Forwards(self.group_size, *(self.group_size * part for part in parts))

    def logit_bytes(self, sampling: SamplingConfig) -> int:
        """Return the bytes of a completion's logits, as measured: with copies, and gradients."""
        return LOSS_BYTES * sampling.gen_length

    @property
    def needs_reference(self) -> bool:
        """Whether the initial policy is the teacher."""
        return self.teacher == "base"

    @model_validator(mode="after")
    def switches_agree(self) -> Self:
        """Refuse tokens that are their own target under the very policy that learns."""
        is_own = self.positions == "committed" and self.target != "finished"
        if is_own and self.teacher == "live" and self.iterations == 1:
            raise ValueError(
                "positions committed with teacher live and one update of a collect teaches nothing;"
                " set iterations above 1, another teacher or target finished, or positions masked"
            )
        return self


LOSS = "dopsd.algorithms.temporal.algorithm.Temporal.loss"
METRICS = GROUPS | {
    "divergence": Metric(
        "nats",
        "divergence of student and target before the bound, mean over trained positions; over the"
        " target's `top_k` tokens and all others as one",
        LOSS,
        "how far the predictions of a state are from those of later states; 0: equal",
    ),
    "target_entropy": Metric(
        "nats",
        r"$-\sum_v p_t(v) \ln p_t(v)$ of the target, mean over trained positions",
        LOSS,
        "how unsure the later states are about a token",
    ),
    "agreement": Metric(
        "share",
        "trained positions at which student and target have the same likeliest token",
        LOSS,
    ),
}
