"""Sections `method.*`: one class a method, whose defaults are the published settings."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dopsd.config.base import Count, Natural, Section, Share


class Attempts(Section):
    """pass@k collection, shared by the methods that learn from their own kept rollouts."""

    attempts: Count = 8
    first_temperature: Annotated[float, Field(ge=0)] = 0.9
    retry_temperature: Annotated[float, Field(ge=0)] = 0.9
    keep_threshold: Share = 0.25
    keep: Literal["correct", "all"] = "correct"
    skip_empty: bool = False
    denominator: Literal["prompts", "kept"] = "prompts"


class DOpsd(Attempts):
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
            raise ValueError("state_sample draws from all states: set drop_remainder to false with it")
        return self


class Rft(Attempts):
    """Rejection fine-tuning: masked-diffusion cross-entropy on the same kept rollouts. Settings are ours."""

    draws_per_rollout: Count = 4
    updates_per_collect: Count = 1


class Methods(Section):
    d_opsd: DOpsd = DOpsd()
    rft: Rft = Rft()
