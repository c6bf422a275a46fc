"""Settings of TraceRL."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dopsd.algorithms.common.config import (
    CROSS_ENTROPY_BYTES,
    GROUPS,
    Forwards,
    GroupConfig,
    TrainOverrides,
)
from dopsd.core.metrics import Metric
from dopsd.core.settings import LARGEST, Count, Natural, NonNegative, Positive, Share
from dopsd.rollout.config import SamplingConfig


class TraceRlConfig(GroupConfig):
    """Settings of TraceRL (arXiv 2509.06949, published code for LLaDA).

    With `shrink: 1` it is CJ-GRPO, and with `states`, `confident` and `reduction: token` RLDF.
    """

    group_size: Annotated[int, Field(ge=2, le=LARGEST)] = 8  # rollouts per problem
    temperature: NonNegative = 0.8  # of all rollouts
    reward: Literal["task", "correct"] = "correct"  # task: the task's reward; correct: 1 or 0
    baseline: Literal["mean", "loo", "z"] = "z"  # what advantages compare with; z: and divide by
    least_mean_reward: float = 0.2  # of a group that is trained on
    most_mean_reward: float | None = 0.8  # of such a group; null: any
    shrink: Count = 8  # denoising steps whose tokens are predicted from one state; CJ-GRPO: 1
    states: Natural = 0  # states drawn from a trajectory by their surprise; 0: all; RLDF: 4
    surprise_temperature: Positive = 1.0  # of that draw
    confident: Share | None = None  # also predict masked tokens of this probability; RLDF: 0.6
    reduction: Literal["state", "token"] = "state"  # state: each state weighs 1; token: each token
    clip_range: Positive = 0.2  # epsilon: the probability ratio is clipped to 1 +- epsilon
    kl_weight: NonNegative = 0.01  # weight of the KL penalty
    kl_to: Literal["old", "base"] = "old"  # the policy that sampled, or the initial one
    kl_reduction: Literal["sum", "mean"] = "sum"  # over the tokens of a state
    passes: Count = 1  # times that a collect's states are trained on
    updates_per_pass: Count = 8  # updates of a pass; 1 of 1 pass: no clip, and no KL to old
    train: TrainOverrides = TrainOverrides(  # what this method changes in section train
        prompts_per_collect=32,
        learning_rate=1e-6,
        warmup_updates=0,
        betas=[0.9, 0.999],
        weight_decay=0.0,
        grad_clip=1.0,
    )

    @property
    def updates_of_collect(self) -> int:
        """Updates that follow a collect."""
        return self.passes * self.updates_per_pass

    def sampling_of(self, sampling: SamplingConfig) -> SamplingConfig:
        """Return how rollouts are made: with exact noise whatever the section says.

        The published sampler's is float64; bfloat16 is that of other methods' published code.
        """
        return sampling.model_copy(update={"gumbel_dtype": "float32"})

    def forwards(self, sampling: SamplingConfig) -> Forwards:
        """Return what a problem costs: the old policy sees all states, also those not drawn."""
        recorded = -(-sampling.steps // self.shrink)
        states = min(recorded, self.states or recorded)
        reference = states if self.kl_to == "base" and self.kl_weight else 0
        parts = recorded + reference, self.passes * states
        return Forwards(self.group_size, *(self.group_size * part for part in parts))

    def logit_bytes(self, sampling: SamplingConfig) -> int:
        """Return the bytes of the logits of the tokens that a group of steps committed."""
        committed = self.shrink * -(-sampling.gen_length // sampling.steps)
        is_any = self.confident is not None or sampling.threshold is not None
        tokens = sampling.gen_length if is_any else committed
        return CROSS_ENTROPY_BYTES * min(tokens, sampling.gen_length)

    @property
    def needs_reference(self) -> bool:
        """Whether the KL penalty is to the initial policy."""
        return self.kl_to == "base" and self.kl_weight > 0

    @model_validator(mode="after")
    def settings_agree(self) -> Self:
        """Refuse bounds without a mean reward between, and a penalty that counts tokens twice."""
        if self.most_mean_reward is not None and self.most_mean_reward < self.least_mean_reward:
            raise ValueError("most_mean_reward must be at least least_mean_reward")
        if self.reduction == "token" and self.kl_reduction == "sum" and self.kl_weight:
            raise ValueError("reduction token needs a mean penalty; set kl_reduction to mean")
        return self


TRACE_LOSS = "dopsd.algorithms.trace_rl.algorithm.state_losses"
METRICS = GROUPS | {
    "kept_groups": Metric(
        "share",
        "groups that are trained on: their rewards differ, with a mean between `least_mean_reward`"
        " and `most_mean_reward`",
        "dopsd.algorithms.trace_rl.algorithm.TraceRl.collect",
    ),
    "kl": Metric(
        "nats",
        r"$e^{\Delta} - \Delta - 1$ with $\Delta = \ln p_{\text{ref}} - \ln p_\theta$, mean over"
        " predicted tokens: estimated KL to the policy of `kl_to`",
        TRACE_LOSS,
        "estimated distance (KL divergence) from the policy of `kl_to`, mean over tokens",
    ),
    "clip_ratio": Metric(
        "share",
        r"predicted tokens whose gain the clip lowers: $\mathrm{clip}(r, 1 \pm \epsilon) A < r A$"
        r" with $r = p_\theta / p_{\text{old}}$ and the advantage $A$",
        TRACE_LOSS,
        "tokens whose gain the clip lowers, since their probability has already changed much",
    ),
    "logp": Metric(
        "nats",
        r"$\ln p_\theta(y_k)$ in the recorded state, mean over predicted tokens",
        "dopsd.algorithms.common.views.view_logps",
        "log-probability of a token of the rollouts, in the state in which it is predicted",
    ),
}
