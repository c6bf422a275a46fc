"""Settings of d-OPSD."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from dopsd.algorithms.common.config import DISTILLATION_BYTES, Forwards, SelectingConfig
from dopsd.core.metrics import Metric
from dopsd.core.settings import Count, Natural, Share
from dopsd.rollout.config import SamplingConfig

RevealScope = Literal["future_blocks", "all_masked"]


class DOpsdConfig(SelectingConfig):
    """Settings of d-OPSD: distillation at every denoising step (arXiv 2606.18195, section 3).

    They hold for any teacher, whatever it is shown. The defaults are those of the published code;
    the preset reference also sets teacher_dropout and train.warmup_ratio.
    The paper's equations correspond to reveal_scope all_masked, record all, record_last_block true,
    loss_vocabulary full, reduction mean, denominator kept, drop_remainder false,
    skip_empty true and updates_per_trajectory 1.
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
    # all: in a block-causal base, of all blocks; causal: of the finished answer's earlier tokens
    teacher_attention: Literal["base", "all", "causal"] = "base"
    ema_decay: Annotated[float, Field(ge=0, lt=1)] = 0.99  # of the ema teacher, per update
    updates_per_trajectory: Count = 4  # updates over which a trajectory's states are spread
    # of an update: neighbouring states, or every updates_per_trajectory-th state
    chunks: Literal["contiguous", "interleaved"] = "contiguous"

    def decisive(self, *ignored: str) -> dict[str, Any]:
        """Return the values by which results are identified; contiguous chunks need no word."""
        unsaid = () if self.chunks == "interleaved" else ("chunks",)
        return super().decisive(*ignored, *unsaid)

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
        """Refuse state_sample together with drop_remainder, and a reveal to a causal teacher."""
        if self.drop_remainder and self.state_sample:
            raise ValueError("state_sample draws from all states; set drop_remainder to false")
        if self.teacher_attention == "causal" and self.reveal_ratio:
            raise ValueError(
                "teacher_attention: causal reads the finished answer; set reveal_ratio to 0"
            )
        return self


DIVERGENCE = "dopsd.algorithms.d_opsd.divergence"
ENTROPY = r"$-\sum_v p_{side}(v) \ln p_{side}(v)$ of the {name}, mean over target positions"
UNSURE = "how unsure the {} is about a token, mean over target positions; 0: quite sure"

METRICS = {
    "divergence": Metric(
        "nats",
        r"$D(p_s, p_t)$ of student and teacher before clipping, mean over target positions; the"
        " formulas are in [d_opsd](algorithms/d_opsd.md#loss). With `loss_vocabulary:"
        r" teacher_top_k`, both are renormalised over the teacher's top $k$",
        f"{DIVERGENCE}.Divergence.__call__",
        "how far the student's predictions are from the teacher's, mean over target positions; 0:"
        " equal",
    ),
    "clip_ratio": Metric(
        "share",
        "entries of the loss's vocabulary whose term of the divergence exceeds `clip`, mean over"
        " target positions; with `clip_mode: position` the positions whose divergence does; 0"
        " without a clip",
        f"{DIVERGENCE}.Divergence.__call__",
    ),
    "overlap_top20": Metric(
        "share",
        r"$\lvert T_{20}(p_s) \cap T_{20}(p_t) \rvert / 20$, where $T_{20}$ are the 20 likeliest"
        " tokens, mean over target positions",
        f"{DIVERGENCE}.top_overlap",
        "tokens that are among the 20 likeliest of both student and teacher, mean over target"
        " positions; in a small vocabulary most of the 20 have almost no probability, so it can"
        " fall while the two agree better: look at the shared probability",
    ),
    "shared_mass": Metric(
        "share",
        r"$\sum_v \min(p_s(v), p_t(v))$, mean over target positions: 1 less the total variation",
        f"{DIVERGENCE}.shared_mass",
        "probability that student and teacher give to the same tokens, mean over target positions",
    ),
    "student_entropy": Metric(
        "nats",
        ENTROPY.format(side="s", name="student"),
        "dopsd.algorithms.common.losses.entropy",
        UNSURE.format("student"),
    ),
    "teacher_entropy": Metric(
        "nats",
        ENTROPY.format(side="t", name="teacher"),
        "dopsd.algorithms.common.losses.entropy",
        UNSURE.format("teacher"),
    ),
    "block_{b}/{name}": Metric(
        "as `NAME`",
        "each metric of this table over the states in block `b` alone; the first block is 0",
        "dopsd.algorithms.d_opsd.algorithm._by_block",
    ),
}
