"""What the sections `method.*` share; the defaults are the published settings."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dopsd.core.settings import Betas, Count, Natural, Positive, Section, Share
from dopsd.models.config import AdapterConfig
from dopsd.rollout.config import CollectorConfig

Weight = Annotated[float, Field(ge=0)]


class TrainOverrides(Section):
    """What a method has of its own in section `train`; null: as it stands there.

    Published runs were longer than section train's 500 updates: d1 fine-tunes for 20 epochs of s1K
    and runs diffu-GRPO for 3800 to 7700 updates, d3LLM takes 6 epochs, VRPO one. `updates` is for
    that.
    """

    updates: Count | None = None
    checkpoint_every: Count | None = None
    prompts_per_collect: Count | None = None
    learning_rate: Positive | None = None
    schedule: Literal["constant", "cosine"] | None = None
    warmup_updates: Natural | None = None
    betas: Betas | None = None
    weight_decay: Weight | None = None
    lora: AdapterConfig | None = None


class AlgorithmConfig(Section):
    """A method's settings. What `train` does not name stays as the class has it, which is as
    published.
    """

    train: TrainOverrides = TrainOverrides()

    @model_validator(mode="before")
    @classmethod
    def keep_published(cls, raw: object) -> object:
        if isinstance(raw, dict) and isinstance(raw.get("train"), dict):
            published = cls.model_fields["train"].default.model_dump(exclude_none=True)
            return raw | {"train": published | raw["train"]}
        return raw

    @property
    def has_uneven_forwards(self) -> bool:
        """Whether one batch's loss makes more forwards than another's."""
        return False

    @property
    def depends_on_length(self) -> bool:
        """Whether its batches depend on how many updates there will be."""
        return False

    @property
    def wants_solutions(self) -> bool:
        """Whether it learns from reference solutions, which not every task has."""
        return False


class SelectingConfig(AlgorithmConfig, CollectorConfig):
    """What algorithms share that learn from their own kept rollouts."""

    skip_empty: bool = False
    denominator: Literal["prompts", "kept"] = "prompts"


class SelfDistillationConfig(SelectingConfig):
    """Switches of distillation at every denoising step (arXiv 2606.18195, section 3), whatever the
    teacher sees.
    """

    reveal_scope: Literal["future_blocks", "all_masked"] = "future_blocks"
    reveal_ratio: Share = 0.25
    record: Literal["until_eos", "all"] = "until_eos"
    record_last_block: bool = False
    drop_remainder: bool = True
    state_sample: Natural = 0
    position_selection: Literal["teacher", "student"] = "teacher"
    teacher_confidence: Literal["max_logit", "max_prob"] = "max_logit"
    divergence: Literal["reverse_kl", "forward_kl", "jsd"] = "reverse_kl"
    jsd_beta: Annotated[float, Field(gt=0, lt=1)] = 0.5
    loss_vocabulary: Literal["full", "teacher_top_k"] = "teacher_top_k"
    top_k: Count = 20
    clip: Annotated[float, Field(gt=0)] | None = 0.05
    reduction: Literal["sum", "mean"] = "sum"
    teacher: Literal["base", "live", "ema"] = "base"
    ema_decay: Annotated[float, Field(ge=0, lt=1)] = 0.99
    updates_per_trajectory: Count = 4

    @model_validator(mode="after")
    def switches_agree(self) -> Self:
        if self.drop_remainder and self.state_sample:
            raise ValueError(
                "state_sample draws from all states: set drop_remainder to false with it"
            )
        return self


BETWEEN = "-"  # method-variant


def kind_of(method: str) -> str:
    """The method whose file computes it: of a variant `d_opsd-live_teacher` that is d_opsd."""
    return method.partition(BETWEEN)[0]
