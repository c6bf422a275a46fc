"""Settings of d-OPSD."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dopsd.algorithms.common.config import DISTILLATION_BYTES, Forwards, SelectingConfig
from dopsd.algorithms.common.metrics import DISTILLATION
from dopsd.core.settings import Count, Natural, Share
from dopsd.rollout.config import SamplingConfig

RevealScope = Literal["future_blocks", "all_masked"]


class DOpsdConfig(SelectingConfig):
    """Settings of d-OPSD: distillation at every denoising step (arXiv 2606.18195, section 3).

    They hold for any teacher, whatever it is shown. The defaults are those of the published code;
    the preset reference also sets teacher_dropout and train.warmup_ratio.
    The paper's equations correspond to reveal_scope all_masked, record all, record_last_block true,
    loss_vocabulary full, reduction mean, denominator kept, drop_remainder false and
    updates_per_trajectory 1.
    """

    reveal_scope: RevealScope = "future_blocks"  # masked tokens that the teacher may be shown
    reveal_ratio: Share = 0.25  # share of those tokens that the teacher is shown
    record: Literal["until_eos", "all"] = "until_eos"  # states to train on; all: after the end too
    record_last_block: bool = False  # also train on states of the last block
    drop_remainder: bool = True  # cut states into equal chunks as published, and drop the rest
    state_sample: Natural = 0  # states drawn uniformly from each trajectory; 0: all
    position_selection: Literal["teacher", "student", "all"] = "teacher"  # whose k positions train
    teacher_confidence: Literal["max_logit", "max_prob"] = "max_logit"  # ranks positions
    divergence: Literal["reverse_kl", "forward_kl", "jsd"] = "reverse_kl"  # student to teacher
    jsd_beta: Annotated[float, Field(gt=0, lt=1)] = 0.5  # weight of the teacher in jsd's mixture
    loss_vocabulary: Literal["full", "teacher_top_k"] = "teacher_top_k"  # entries of the loss
    top_k: Count = 20  # tokens of teacher_top_k, renormalised
    clip: Annotated[float, Field(gt=0)] | None = 0.05  # bound of the loss, in nats; null: none
    clip_mode: Literal["entry", "position", "none"] = "entry"  # what clip bounds: an entry's term
    reduction: Literal["sum", "mean"] = "sum"  # over a state's k positions; mean: as in the paper
    teacher: Literal["base", "live", "ema"] = "base"  # initial policy, student, or moving average
    teacher_dropout: bool = False  # teacher live: keep the adapter's dropout on, as published
    teacher_attention: Literal["base", "all"] = "base"  # all: in a block-causal base, of all blocks
    ema_decay: Annotated[float, Field(ge=0, lt=1)] = 0.99  # of the ema teacher, per update
    updates_per_trajectory: Count = 4  # updates over which a trajectory's states are spread

    @property
    def reveals_own_future(self) -> bool:
        """Whether the teacher is shown tokens of the rollout that the student has not reached."""
        return self.reveal_ratio > 0

    @property
    def unseen_by_blocks(self) -> tuple[str, str] | None:
        """A reveal of later blocks, where the teacher attends as the base does."""
        is_later = self.reveals_own_future and self.reveal_scope == "future_blocks"
        if not is_later or self.teacher_attention == "all":
            return None
        return "reveal_scope: future_blocks", "set it to all_masked, or teacher_attention to all"

    def forwards(self, sampling: SamplingConfig) -> Forwards:
        """Return what a problem costs: every recorded state is seen by teacher and student."""
        blocks = sampling.gen_length // sampling.block_length
        steps = sampling.steps - (0 if self.record_last_block else sampling.steps // blocks)
        states = min(steps, self.state_sample or steps)
        return Forwards(self.attempts, states, states)

    def logit_bytes(self, sampling: SamplingConfig) -> int:
        """Return the bytes of a block's logits, of student and teacher."""
        return DISTILLATION_BYTES * sampling.block_length

    @property
    def needs_reference(self) -> bool:
        """Whether the initial policy is the teacher."""
        return self.teacher == "base"

    @property
    def updates_of_collect(self) -> int:
        """Updates that follow a collect."""
        return self.updates_per_trajectory

    @model_validator(mode="after")
    def switches_agree(self) -> Self:
        """Refuse state_sample together with drop_remainder."""
        if self.drop_remainder and self.state_sample:
            raise ValueError("state_sample draws from all states; set drop_remainder to false")
        return self


METRICS = DISTILLATION
