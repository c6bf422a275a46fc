"""Sections `method.*`: one class a method, whose defaults are the published settings."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from dopsd.config.base import LARGEST, Betas, Count, Natural, Positive, Section, Share
from dopsd.config.data import Source
from dopsd.config.model import AdapterConfig

Weight = Annotated[float, Field(ge=0)]


class TrainOverrides(Section):
    """What a method has of its own in section `train`; null: as it stands there.

    Published runs were longer than section train's 500 updates: d1 fine-tunes for 20 epochs of s1K and runs diffu-GRPO for
    3800 to 7700 updates, d3LLM takes 6 epochs, VRPO one. `updates` is for that.
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
    """A method's settings. What `train` does not name stays as the class has it, which is as published."""

    train: TrainOverrides = TrainOverrides()

    @model_validator(mode="before")
    @classmethod
    def keep_published(cls, raw: Any) -> Any:
        if isinstance(raw, dict) and isinstance(raw.get("train"), dict):
            published = cls.model_fields["train"].default.model_dump(exclude_none=True)
            return raw | {"train": published | raw["train"]}
        return raw

    @property
    def has_uneven_forwards(self) -> bool:
        """Whether one batch's loss makes more forwards than another's."""
        return False

    @property
    def wants_solutions(self) -> bool:
        """Whether it learns from reference solutions, which not every task has."""
        return False


class CollectorConfig(AlgorithmConfig):
    """pass@k collection, shared by the methods that learn from their own kept rollouts."""

    attempts: Count = 8
    first_temperature: Annotated[float, Field(ge=0)] = 0.9
    retry_temperature: Annotated[float, Field(ge=0)] = 0.9
    keep_threshold: Share = 0.25
    keep: Literal["correct", "all"] = "correct"
    skip_empty: bool = False
    denominator: Literal["prompts", "kept"] = "prompts"


class DOpsdConfig(CollectorConfig):
    """On-policy self-distillation with the self-future as teacher (arXiv 2606.18195); each switch: README, d-OPSD."""

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


class RftConfig(CollectorConfig):
    """Rejection fine-tuning: masked-diffusion cross-entropy on the same kept rollouts. Settings are ours."""

    draws_per_rollout: Count = 4
    updates_per_collect: Count = 1


class ArOpsdConfig(DOpsdConfig):
    """AR-style on-policy self-distillation: a reference solution in the teacher's prompt (arXiv 2606.18195, section 4)."""

    attempts: Count = 1
    keep: Literal["correct", "all"] = "all"
    reveal_ratio: Share = 0.0
    max_teacher_prompt: Count = 400

    @property
    def wants_solutions(self) -> bool:
        return True


class DiffuGrpoConfig(AlgorithmConfig):
    """Policy gradient with group-relative advantages for masked diffusion (d1, arXiv 2504.12216, section 3.2)."""

    group_size: Annotated[int, Field(ge=2, le=LARGEST)] = 6
    temperature: Weight = 0.9
    iterations: Count = (
        12  # updates a collect feeds, each with its own masks of the prompt; 8 for planning tasks
    )
    clip_range: Positive = 0.5
    kl_weight: Weight = 0.04
    prompt_mask: Share = 0.15
    reward: Literal["task", "correct"] = "task"
    train: TrainOverrides = TrainOverrides(learning_rate=3e-6, prompts_per_collect=16)


class SftConfig(AlgorithmConfig):
    """Fine-tuning on solutions by masked diffusion (d1, arXiv 2504.12216, section 3.1).

    `traces` names rows {question, response}; null takes the task's own reference solutions, which is ours: d1 takes the
    1000 traces of s1K, 20 epochs of them (1250 updates), cut to 4096 tokens with their question. `length` is that of the
    response with its padding, in tokens; null takes sampling.gen_length.
    """

    traces: Source | None = None
    length: Count | None = None
    train: TrainOverrides = TrainOverrides(
        learning_rate=1e-5,
        prompts_per_collect=16,
        lora=AdapterConfig(r=128, alpha=256, dropout=0.05, targets=["q_proj", "k_proj", "v_proj"]),
    )

    @property
    def wants_solutions(self) -> bool:
        return self.traces is None


class VrpoConfig(AlgorithmConfig):
    """Preferences with the bound's variance reduced (LLaDA 1.5, arXiv 2505.19223): pairs of a right and a wrong rollout.

    How pairs are made, `attempts`, `temperature` and `pairs`, is ours; so is that a graded task pairs its best with its
    worst, that the fine-tuning term is the bound a token, and that what follows the first end of text is masked.
    """

    attempts: Annotated[int, Field(ge=2, le=LARGEST)] = 8
    temperature: Weight = 0.9
    pairs: Literal["initial", "current"] = "initial"  # the policy that samples them
    beta: Positive = 0.2
    draws: Count = 8  # masks an estimate, the same for policy and reference
    sft_weight: Weight = 0.05
    train: TrainOverrides = TrainOverrides(
        learning_rate=5e-7,
        schedule="cosine",
        warmup_updates=15,
        betas=[0.9, 0.95],
        weight_decay=0.01,
        prompts_per_collect=64,
    )

    @property
    def has_uneven_forwards(self) -> bool:
        return True


class D3llmConfig(AlgorithmConfig):
    """Off-policy self-distillation along recorded trajectories (d3LLM); block and share of masks grow over training."""

    tries: Count = 5  # of a recording: greedy, then warmer each time, until the answer is right
    warmer: Positive = 0.1
    first_block: Count = 16
    last_block: Count = 32
    most_masked: Annotated[float, Field(gt=0, le=1)] = 0.8
    entropy_weight: Weight = 2.0
    entropy_temperature: Positive = 0.5
    train: TrainOverrides = TrainOverrides(
        learning_rate=2e-5, prompts_per_collect=64, lora=AdapterConfig(r=256, alpha=256)
    )

    @property
    def wants_solutions(self) -> bool:
        return True


class AlgorithmsConfig(Section):
    d_opsd: DOpsdConfig = DOpsdConfig()
    rft: RftConfig = RftConfig()
    diffu_grpo: DiffuGrpoConfig = DiffuGrpoConfig()
    sft: SftConfig = SftConfig()
    ar_opsd: ArOpsdConfig = ArOpsdConfig()
    vrpo: VrpoConfig = VrpoConfig()
    d3llm: D3llmConfig = D3llmConfig()
