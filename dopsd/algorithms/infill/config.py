"""Settings of answer infilling."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from dopsd.algorithms.common.config import Forwards
from dopsd.algorithms.d_opsd.config import METRICS as DISTILLATION
from dopsd.algorithms.d_opsd.config import DOpsdConfig
from dopsd.algorithms.trace_rl.config import METRICS as TRACE
from dopsd.algorithms.trace_rl.config import TraceRlConfig
from dopsd.core.metrics import Metric
from dopsd.core.settings import LARGEST, Count, Share
from dopsd.rollout.config import SamplingConfig


class InfillConfig(DOpsdConfig):
    """Settings of answer infilling; the method is this project's.

    The loss has d-OPSD's published defaults, so that only the teacher's knowledge differs.
    """

    attempts: Count = 1  # attempts per problem
    keep: Literal["correct", "all"] = "all"  # all: also train on failed attempts
    reveal_ratio: Share = 0.5  # share of the masked answer that the teacher is shown
    answer: Literal["gold", "sibling", "solver"] = "gold"  # whose answer it is shown
    least_shift: Share = 0.0  # where the answer moves the teacher less than this, rewards teach
    group_size: Annotated[int, Field(ge=2, le=LARGEST)] = 8  # rewards: rollouts per problem
    shrink: Count = 4  # rewards: denoising steps whose tokens are predicted from one state
    reveals_own_future: ClassVar[bool] = False

    @property
    def wants_gold_answers(self) -> bool:
        """Whether the method needs the gold answer of every problem."""
        return self.answer == "gold"

    @property
    def unseen_by_blocks(self) -> tuple[str, str] | None:
        """A teacher that knows more than the student by later blocks alone."""
        if self.teacher_attention == "all":
            return None
        return "teacher_attention", "set it to all"

    def forwards(self, sampling: SamplingConfig) -> Forwards:
        """Return what a problem costs: its states, and with `least_shift` the rewards."""
        cost = super().forwards(sampling)
        if not self.least_shift:
            return cost
        rewards, probed = self.rewards.forwards(sampling), 2 * cost.scored
        return Forwards(
            cost.rollouts + rewards.rollouts,
            probed + max(cost.scored, rewards.scored),
            max(cost.trained, rewards.trained),
        )

    def logit_bytes(self, sampling: SamplingConfig) -> int:
        """Return the bytes of a sequence's logits, of the teacher's loss or of the rewards'."""
        cost = super().logit_bytes(sampling)
        return max(cost, self.rewards.logit_bytes(sampling)) if self.least_shift else cost

    @property
    def rewards(self) -> TraceRlConfig:
        """The policy gradient where the answer tells the teacher too little.

        As published for TraceRL, but with the task's reward, groups of any mean reward, and other
        numbers of rollouts, states and updates.
        """
        return TraceRlConfig(
            group_size=self.group_size,
            temperature=self.first_temperature,
            reward="task",
            least_mean_reward=0.0,
            most_mean_reward=None,
            shrink=self.shrink,
            updates_per_pass=self.updates_per_trajectory,
        )

    @model_validator(mode="after")
    def settings_agree(self) -> Self:
        """Refuse settings of which one would do nothing, or undo another."""
        faults = {
            "reveal_scope all_masked: only later blocks hold the answer; set future_blocks": (
                self.reveal_scope == "all_masked"
            ),
            "answer sibling needs attempts of at least 2": (
                self.answer == "sibling" and self.attempts == 1
            ),
        }
        if self.least_shift:
            faults |= {
                "least_shift needs denominator kept, which rewards have": (
                    self.denominator == "prompts"
                ),
                "least_shift samples groups in which the attempts are; set group_size to at least"
                " attempts, and one temperature": (
                    self.group_size < self.attempts
                    or self.first_temperature != self.retry_temperature
                ),
            }
        if found := [fault for fault, holds in faults.items() if holds]:
            raise ValueError(found[0])
        return self


COUNTED = "dopsd.algorithms.infill.lessons.lesson_count"
METRICS = {
    "span_share": Metric(
        "share",
        "kept rollouts with an answer span that the verifier reads and that can hold the answer;"
        " the others are dropped",
        COUNTED,
    ),
    "changed_share": Metric(
        "share", "rollouts among them whose own answer is another text than the one shown", COUNTED
    ),
    "rebuilt_share": Metric(
        "share",
        "rollouts among them whose own answer has another number of tokens, so that the end of the"
        " completion was built again",
        COUNTED,
    ),
    "answer_shift": Metric(
        "share",
        r"with `least_shift`: $\frac{1}{2} \sum_v \lvert q(v) - q_0(v) \rvert$ of the teacher with"
        " the answer, $q$, and without, $q_0$; mean over the block's masked positions, in a"
        " quarter of states with a reveal",
        "dopsd.algorithms.infill.lessons.answer_shift",
        "how much of the teacher's prediction the shown answer changes; 0: it says nothing",
    ),
    "taught_collects": Metric(
        "share",
        "with `least_shift`: collects that learn from the teacher; the others learn from rewards",
        "dopsd.algorithms.infill.algorithm.Infill.collect",
    ),
    **TRACE,
    **DISTILLATION,
}
