"""Settings of supervised fine-tuning."""

from typing import ClassVar, Literal

from dopsd.algorithms.common.config import (
    MASKED_CROSS_ENTROPY,
    AlgorithmConfig,
    Forwards,
    TrainOverrides,
)
from dopsd.core.metrics import Metric
from dopsd.core.settings import Count
from dopsd.models.config import AdapterConfig
from dopsd.rollout.config import SamplingConfig
from dopsd.tasks.common.config import Source

RATIOS = {"low": 0.2, "half": 0.5, "high": 0.9}  # masked in a look, by the metric's last word
MOST = 32  # texts of a look
UNLIKE_PAPER = (
    "sft learns the task's own solutions; the paper's SFT learns 1000 traces of s1K for 1250"
    " updates: set method.sft.traces and method.sft.train.updates (dopsd's docs/algorithms/sft.md)"
)


class SftConfig(AlgorithmConfig):
    """Settings of fine-tuning on solutions by masked diffusion (d1, arXiv 2504.12216, section 3.1).

    d1 trains on the 1000 traces of s1K: 20 epochs (1250 updates), cut to 4096 tokens with their
    question. Without `traces` the method learns the task's own reference solutions, which is this
    project's choice.
    """

    # rows {question, response} or {messages}; null: the task's own solutions
    traces: Source | None = None
    length: Count | None = None  # tokens of a response with padding; null: sampling.gen_length
    predict: Literal["response", "all"] = "response"  # what is masked; all: the prompt too
    padding: Literal["learn", "ignore"] = "learn"  # ignore: only the first end of text is learnt
    held_out_every: Count | None = (
        None  # collects between looks at texts that are not learnt; null: none
    )
    train: TrainOverrides = TrainOverrides(  # what this method changes in section train
        learning_rate=1e-5,
        schedule="linear",
        warmup_updates=0,
        betas=[0.9, 0.999],
        grad_clip=1.0,
        prompts_per_collect=16,
        lora=AdapterConfig(r=128, alpha=256, dropout=0.05, targets=["q_proj", "k_proj", "v_proj"]),
    )
    needs_reference: ClassVar[bool] = False

    def looks(self, updates: int) -> int:
        """Return how often a run of so many updates looks at texts that are not learnt."""
        every = self.held_out_every
        return 0 if every is None else 1 - -(updates - 1) // every  # the first, and the last

    @property
    def unlike_paper(self) -> str:
        """The paper's SFT learns other solutions."""
        return "" if self.traces else UNLIKE_PAPER

    @property
    def wants_solutions(self) -> bool:
        """Whether the method needs the task's reference solutions: only without `traces`."""
        return self.traces is None

    @property
    def depends_on_length(self) -> bool:
        """Whether the log depends on the length: the last update looks at held-out texts."""
        return self.held_out_every is not None

    def forwards(self, sampling: SamplingConfig) -> Forwards:
        """Return what a solution costs: one mask."""
        return Forwards(0, 0, 1)


def _held_out(share: str) -> Metric:
    return Metric(
        "nats",
        rf"$\frac{{1}}{{t L}} \sum_{{k \text{{ masked}}}} -\ln p(y_k)$ at $t = {share}$, mean over"
        " at most 32 held-out texts (`held_out_every`), always masked alike: of the validation"
        " split, or the first of `traces`, one in 20",
        "dopsd.algorithms.sft.algorithm.HeldOut.measure",
        f"how surprised the model is by texts that it does not learn, with {share} of them masked",
    )


METRICS = {
    "cross_entropy": MASKED_CROSS_ENTROPY,
    "held_out_low": _held_out("0.2"),
    "held_out_half": _held_out("0.5"),
    "held_out_high": _held_out("0.9"),
}
