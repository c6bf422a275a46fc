"""Settings that the sections `method.*` share; the defaults are the published ones."""

from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import Field, model_validator

from dopsd.core.metrics import Metric
from dopsd.core.settings import (
    LARGEST,
    Betas,
    Count,
    Natural,
    NonNegative,
    Positive,
    Section,
    Share,
)
from dopsd.models.config import AdapterConfig, Reference, Weights
from dopsd.rollout.config import CollectorConfig, SamplingConfig

# an entry of the logits in a loss: with the teacher's, or in a cross-entropy, 4 for ln p and 8 for
# gradients
DISTILLATION_BYTES, CROSS_ENTROPY_BYTES = 10, 12


class Forwards(NamedTuple):
    """Sequences that a method computes for each problem of a collect, at most."""

    rollouts: int  # answers, each with a forward for every denoising step
    scored: int  # forwards without gradients, in the collect and its updates
    trained: int  # forwards with a backward pass, in all updates of the collect
    recorded: int = 0  # tries at each training problem before the run, one token a step


class TrainOverrides(Section):
    """Values that a method changes in section `train`; null keeps the section's value.

    Published runs were longer than the 500 updates of section `train`: d1 fine-tunes for 20 epochs
    of s1K and runs diffu-GRPO for 3800 to 7700 updates, d3LLM takes 6 epochs, VRPO one. Set
    `updates` for those lengths.
    """

    updates: Count | None = None  # optimizer updates of the run
    checkpoint_every: Count | None = None  # updates between checkpoints
    prompts_per_collect: Count | None = None  # problems of a collect, over all processes
    reuse: Count | None = None  # how often the updates of a collect are made
    learning_rate: Positive | None = None  # peak learning rate of AdamW
    schedule: Literal["constant", "cosine", "linear"] | None = None  # others: down to 0 at the end
    warmup_updates: Natural | None = None  # updates of linear warm-up
    warmup_ratio: Share | None = None  # in its place a share of an epoch's updates, rounded up
    betas: Betas | None = None  # AdamW's decay rates of both moments
    weight_decay: NonNegative | None = None  # AdamW's weight decay
    grad_clip: Positive | None = None  # largest gradient norm
    weights: Weights | None = None  # what trains: lora (an adapter) or all (every weight)
    lora: AdapterConfig | None = None  # shape of the adapter, as a whole
    start_from: str | None = None  # checkpoint folder or run that training starts from
    reference: Reference | None = None  # reference and fixed teacher: the base, or the start


class AlgorithmConfig(Section):
    """Settings of every method.

    In `train`, a value that params.yaml does not name keeps the method's default, which is
    published.
    """

    train: TrainOverrides = TrainOverrides()  # what this method changes in section train
    # whether the method decides itself how many tokens a step of its rollouts commits
    fixes_steps: ClassVar[bool] = False

    @model_validator(mode="before")
    @classmethod
    def keep_published(cls, raw: object) -> object:
        """Fill in the method's own defaults for values of `train` that are not given."""
        if isinstance(raw, dict) and isinstance(raw.get("train"), dict):
            published = cls.model_fields["train"].default.model_dump(exclude_none=True)
            return raw | {"train": published | raw["train"]}
        return raw

    @property
    def depends_on_length(self) -> bool:
        """Whether batches depend on the number of updates of the run."""
        return False

    @property
    def updates_of_collect(self) -> int:
        """Updates that follow a collect, for the length of an epoch."""
        return 1

    @property
    def unlike_paper(self) -> str:
        """How it differs from the method of that name in Table 2 of the paper; empty: it does not.

        Its source is arXiv 2606.18195.
        """
        return ""

    @property
    def wants_solutions(self) -> bool:
        """Whether the method learns from reference solutions, which not every task has."""
        return False

    @property
    def wants_gold_answers(self) -> bool:
        """Whether the method learns from a problem's one gold answer, which not every task has."""
        return False

    @property
    def unseen_by_blocks(self) -> tuple[str, str] | None:
        """A setting that shows the teacher later blocks alone, and what to do instead."""
        return None

    def sampling_of(self, sampling: SamplingConfig) -> SamplingConfig:
        """Return lengths and steps of the method's rollouts: those of the section."""
        return sampling

    def reason_against(self, sampling: SamplingConfig) -> str | None:
        """Return why the method cannot learn from such rollouts; None if it can."""

    def forwards(self, sampling: SamplingConfig) -> Forwards | None:
        """Return what a problem of a collect costs at most; None if the method does not say."""

    def logit_bytes(self, sampling: SamplingConfig) -> int:
        """Return the most bytes of a sequence's logits in the loss, per entry of the head."""
        return CROSS_ENTROPY_BYTES * sampling.gen_length

    @property
    def needs_reference(self) -> bool:
        """Whether the method computes with the initial policy: a copy of weights, or no adapter."""
        return True


class GroupConfig(AlgorithmConfig):
    """Settings of algorithms that compare the rewards of several rollouts of a problem."""

    group_size: Annotated[int, Field(ge=2, le=LARGEST)] = 6  # rollouts per problem
    temperature: NonNegative = 0.9  # of all rollouts
    reward: Literal["task", "correct"] = "task"  # task: the task's reward; correct: 1 or 0


class IteratedGroupConfig(GroupConfig):
    """Settings of algorithms that make several updates on the rollouts of a collect."""

    iterations: Count = 8  # updates per collect, each with new masks

    @property
    def updates_of_collect(self) -> int:
        """Updates that follow a collect."""
        return self.iterations

    def forwards_each(self, scored: int, trained: int) -> Forwards:
        """Return the forwards of a problem from those of a completion in one update."""
        number = self.group_size * self.iterations
        return Forwards(self.group_size, number * scored, number * trained)


class SelectingConfig(AlgorithmConfig, CollectorConfig):
    """Settings of algorithms that learn from their own kept rollouts."""

    skip_empty: bool = False  # true: no update after a collect without a kept rollout
    denominator: Literal["prompts", "kept"] = "prompts"  # divisor of the loss: all prompts, or kept


BETWEEN = "-"  # between the method and the variant in a name


def kind_of(method: str) -> str:
    """Return the method of a name: d_opsd for the variant `d_opsd-live_teacher`."""
    return method.partition(BETWEEN)[0]


SAMPLED = "dopsd.algorithms.common.groups.RewardedGroups.sample"
GROUPS = {
    "reward": Metric(
        "reward",
        "mean reward of the completions: the task's, or 1 for a right answer (`reward: correct`)",
        SAMPLED,
    ),
    "flat_groups": Metric(
        "share", "groups whose completions all have one reward, and so no advantage", SAMPLED
    ),
}
MASKED_LOGP = Metric(
    "nats",
    r"$\ln p_\theta(y_k)$ with the whole completion masked, mean over the tokens of the"
    " completions",
    "dopsd.algorithms.common.losses.masked_cross_entropy",
    "log-probability of a token of the completions, seen with the whole completion masked",
)
MASKED_CROSS_ENTROPY = Metric(
    "nats",
    r"$\frac{1}{t L} \sum_{k \text{ masked}} -\ln p(y_k)$ of a text with share of masks $t$"
    " and length $L$, padding included; mean over texts",
    "dopsd.algorithms.common.losses.masked_diffusion_loss",
    "how surprised the model is by the masked tokens of the texts that it learns, mean over texts",
)
