"""Settings of VRPO."""

from typing import Annotated, Literal

from pydantic import Field

from dopsd.algorithms.common.config import AlgorithmConfig, Forwards, TrainOverrides
from dopsd.core.metrics import Metric
from dopsd.core.settings import LARGEST, Count, NonNegative, Positive
from dopsd.rollout.config import SamplingConfig


class VrpoConfig(AlgorithmConfig):
    """Settings of VRPO: variance-reduced preference optimisation (LLaDA 1.5, arXiv 2505.19223).

    These choices are this project's: how pairs are formed (`attempts`, `temperature`, `pairs`), and
    that a graded task pairs its best with its worst rollout. The fine-tuning term is the bound per
    token, and tokens after the first end of text are masked; both are our choices too.
    """

    attempts: Annotated[int, Field(ge=2, le=LARGEST)] = 8  # rollouts per problem
    temperature: NonNegative = 0.9  # of all rollouts
    pairs: Literal["initial", "current"] = "initial"  # the policy that samples the pairs
    beta: Positive = 0.2  # scale of the margin in the preference loss
    draws: Count = 8  # masks per likelihood estimate, the same for policy and reference
    sft_weight: NonNegative = 0.05  # weight of fine-tuning on the preferred completion
    train: TrainOverrides = TrainOverrides(  # what this method changes in section train
        learning_rate=5e-7,
        schedule="cosine",
        warmup_updates=15,
        betas=[0.9, 0.95],
        weight_decay=0.01,
        prompts_per_collect=64,
    )

    def forwards(self, sampling: SamplingConfig) -> Forwards:
        """Return what a problem costs: the draws of a pair, under reference and policy."""
        return Forwards(self.attempts, 2 * self.draws, 2 * self.draws)


COLLECT = "dopsd.algorithms.vrpo.algorithm.Vrpo.collect"
LOSS = "dopsd.algorithms.vrpo.algorithm.Vrpo.loss"

METRICS = {
    "paired": Metric(
        "share", "problems that give a pair: one attempt better than another", COLLECT
    ),
    "initial_first_attempt_score": Metric(
        "share",
        "mean score of first attempts of the initial policy, which samples with `pairs: initial`;"
        " in the place of `first_attempt_score`",
        COLLECT,
    ),
    "margin": Metric(
        "nats",
        r"$\beta [(B_\theta - B_{\text{ref}})(y^+) - (B_\theta - B_{\text{ref}})(y^-)]$, mean over"
        " pairs; $B$ is the bound of the log-likelihood of a completion",
        "dopsd.algorithms.vrpo.algorithm.preference",
        "by how much training has raised the better answer of a pair over the worse one",
    ),
    "preferred": Metric("share", "pairs with a margin above 0", LOSS),
    "cross_entropy": Metric(
        "nats",
        r"$-B_\theta(y^+) / L_{y^+}$, mean over pairs: the fine-tuning term, for each token of the"
        " preferred completion",
        LOSS,
        "how surprised the model is by the better answers, for each of their tokens",
    ),
}
