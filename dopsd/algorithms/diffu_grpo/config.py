"""Settings of diffu-GRPO."""

from dopsd.algorithms.common.config import (
    GROUPS,
    MASKED_LOGP,
    Forwards,
    IteratedGroupConfig,
    TrainOverrides,
)
from dopsd.core.metrics import Metric
from dopsd.core.settings import Count, NonNegative, Positive, Share
from dopsd.rollout.config import SamplingConfig


class DiffuGrpoConfig(IteratedGroupConfig):
    """Settings of diffu-GRPO, a group-relative policy gradient (d1, arXiv 2504.12216, 3.2)."""

    iterations: Count = 12  # updates per collect, each with new prompt masks; planning tasks: 8
    clip_range: Positive = 0.5  # epsilon: the probability ratio is clipped to 1 +- epsilon
    kl_weight: NonNegative = 0.04  # weight of the KL penalty to the initial policy
    prompt_mask: Share = 0.15  # share of prompt tokens masked in each update
    train: TrainOverrides = TrainOverrides(  # what this method changes in section train
        learning_rate=3e-6, prompts_per_collect=16
    )

    def forwards(self, sampling: SamplingConfig) -> Forwards:
        """Return what a problem costs: old policy, initial one, and the update."""
        return self.forwards_each(2, 1)


LOSS = "dopsd.algorithms.diffu_grpo.algorithm.policy_gradient"

METRICS = GROUPS | {
    "kl": Metric(
        "nats",
        r"$e^{\Delta} - \Delta - 1$ with $\Delta = \ln p_{\text{ref}} - \ln p_\theta$, mean over"
        " the tokens of the completions: estimated KL to the initial policy",
        LOSS,
        "estimated distance (KL divergence) from the initial policy, mean over tokens",
    ),
    "clip_ratio": Metric(
        "share",
        r"tokens whose gain the clip lowers: $\mathrm{clip}(r, 1 \pm \epsilon) A < r A$ with $r ="
        r" p_\theta / p_{\text{old}}$ and the advantage $A$",
        LOSS,
        "tokens whose gain the clip lowers, since their probability has already changed much",
    ),
    "logp": MASKED_LOGP,
}
