"""Settings of SPG."""

from typing import ClassVar, Literal

from dopsd.algorithms.common.config import GROUPS, Forwards, IteratedGroupConfig, TrainOverrides
from dopsd.core.metrics import Metric
from dopsd.core.settings import Count, Positive, Share
from dopsd.rollout.config import SamplingConfig


class SpgConfig(IteratedGroupConfig):
    """Settings of SPG, a policy gradient between two bounds (arXiv 2510.09541)."""

    iterations: Count = 4  # updates per collect, each with new masks
    draws: Count = 2  # masks per completion and update
    mask: Literal["block", "random"] = "block"  # block: a random block in part, later ones whole
    prompt_mask: Share = 0.15  # share of prompt tokens masked in each draw
    mask_earlier: bool = True  # block: mask tokens of earlier blocks with the same probability
    negative: Literal["mix", "eubo", "elbo", "none"] = "mix"  # bound of worse completions
    mix_weight: Share = 0.5  # share of the upper bound in mix
    eubo_beta: Positive = 1.5  # exponent of probabilities in the upper bound; Sudoku: 1.0
    train: TrainOverrides = TrainOverrides(  # what this method changes in section train
        learning_rate=3e-6, prompts_per_collect=16
    )
    needs_reference: ClassVar[bool] = False

    def forwards(self, sampling: SamplingConfig) -> Forwards:
        """Return what a problem costs: a collect makes no forward beside sampling."""
        return self.forwards_each(0, self.draws)


LOSS = "dopsd.algorithms.spg.algorithm"

METRICS = GROUPS | {
    "elbo": Metric(
        "nats",
        "lower bound of the log-likelihood for each token: mean $\\ln p$ at masked tokens, mean"
        " over masks and completions",
        f"{LOSS}.lower_bound",
        "log-probability of a masked token, mean over masks and completions: a lower bound",
    ),
    "eubo": Metric(
        "nats",
        r"upper bound of the log-likelihood for each token:"
        r" $\frac{1}{\beta} \ln(\mathrm{mean}_j\, p^\beta 1_{\text{masked}} / t_j)$ over masks"
        " $j$, mean over masked tokens and completions",
        f"{LOSS}.upper_bound",
        "upper bound of the log-probability of a token, mean over completions",
    ),
}
