"""Settings of ESPO, GDSD and coupled-GRPO."""

from typing import Literal, Self

from pydantic import model_validator

from dopsd.algorithms.common.config import GROUPS, Forwards, IteratedGroupConfig, TrainOverrides
from dopsd.core.metrics import Metric
from dopsd.core.settings import Count, NonNegative, Positive
from dopsd.rollout.config import SamplingConfig


class EspoConfig(IteratedGroupConfig):
    """Settings of ESPO (arXiv 2512.03759); the defaults are those of its published code.

    With other switches it is GDSD (arXiv 2605.29398) or coupled-GRPO (arXiv 2506.20639).
    """

    temperature: NonNegative = 1.0  # of all rollouts
    objective: Literal["ratio", "squared", "token"] = "ratio"  # ESPO, GDSD, or coupled-GRPO
    draws: Count = 2  # masks of a completion in an update, each with its complement
    masks: Literal["count", "share"] = "count"  # l tokens; or each with probability t ~ U(0.2, 0.8)
    token_weight: Literal["bound", "one"] = "bound"  # bound: 1 / share of masked tokens; one: 1
    full_mask: bool = False  # token: average with ln p when the whole completion is masked
    tail: Literal["window", "context", "counted"] = "window"  # tokens after the end of text
    clip_range: NonNegative = 0.2  # epsilon: ratios are clipped to 1 +- epsilon
    clamp_on: Literal["sum", "mean"] = "sum"  # squared: clamp the summed change, or per token
    psi: Positive = 10.0  # squared: change per token for an advantage of 1, nats
    kl_weight: NonNegative = 1e-3  # weight of the KL penalty to the initial policy
    train: TrainOverrides = TrainOverrides(  # what this method changes in section train
        learning_rate=3e-6, weight_decay=0.01, prompts_per_collect=16
    )

    def forwards(self, sampling: SamplingConfig) -> Forwards:
        """Return what a problem costs: all views under old policy, initial one, and the update."""
        views = 2 * self.draws + self.full_mask
        return self.forwards_each(2 * views, views)

    def reason_against(self, sampling: SamplingConfig) -> str | None:
        """Refuse a window of which some tokens are never sampled."""
        if self.tail == "window" and sampling.stop_after_eos:
            return (
                "tail window scores tokens that sampling.stop_after_eos does not sample; set tail"
                " to counted or context, or stop_after_eos to false"
            )
        return None

    @model_validator(mode="after")
    def switches_agree(self) -> Self:
        """Refuse switches that the objective does not have."""
        if self.full_mask and self.objective != "token":
            raise ValueError("full_mask estimates tokens; set objective to token")
        if self.objective == "squared" and not 0 < self.clip_range < 1:
            raise ValueError("objective squared needs a clip_range between 0 and 1, such as 4e-4")
        return self


LOSS = "dopsd.algorithms.espo.algorithm.Espo.loss"

METRICS = GROUPS | {
    "kl": Metric(
        "nats",
        r"estimated KL to the initial policy: the penalty in [espo](algorithms/espo.md) without"
        r" $\lambda$, with $D$ in place of $E$ for `token_weight: one`; mean over completions, with"
        " `objective: token` over tokens",
        LOSS,
        "estimated distance (KL divergence) from the initial policy",
    ),
    "clip_ratio": Metric(
        "share",
        r"completions, or tokens with `objective: token`, whose gain the clip lowers; with"
        " `objective: squared` those whose change is clamped, which have no gradient but the KL's",
        LOSS,
        "share of what is trained on that the clip stops, since its probability has changed much",
    ),
    "logp": Metric(
        "nats",
        r"estimate of $\ln p_\theta$ for each token: $E / L$, mean over completions, with"
        r" `token_weight: one` $D / L$, about half of the mean $\ln p_\theta$ of a token; with"
        r" `objective: token` mean over tokens",
        LOSS,
        "estimated log-probability of a token of the completions",
    ),
}
