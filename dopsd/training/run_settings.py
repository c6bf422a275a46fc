"""The settings of one training run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dopsd.algorithms.common.config import AlgorithmConfig, kind_of
from dopsd.core.paths import RunKey
from dopsd.models.config import ModelConfig
from dopsd.rollout.config import SamplingConfig

if TYPE_CHECKING:
    from dopsd.distributed.config import LaunchConfig
    from dopsd.tasks.common.config import TaskConfig
    from dopsd.training.config import TrainConfig

# the methods' names of the runs of `dopsd adapt`, and the keys of section adapt that set them
ADAPTING, DISTILLING = "sft-adapt", "d_opsd-distill"
PHASES = {ADAPTING: "learn", DISTILLING: "distill"}
# Keys of section train that only change the use of memory, as sampling.batch_size does.
MEMORY = ("micro_batch_states", "gradient_checkpointing")


@dataclass(frozen=True)
class RunSettings:
    """One training run: its key and the sections of the packages that it uses.

    `train` already contains the algorithm's overrides.
    """

    key: RunKey
    data: TaskConfig
    model: ModelConfig
    sampling: SamplingConfig
    algorithm: AlgorithmConfig
    train: TrainConfig
    launch: LaunchConfig

    @property
    def kind(self) -> str:
        """The algorithm's name: d_opsd for the variant `d_opsd-live_teacher`."""
        return kind_of(self.key.method)

    @property
    def section(self) -> str:
        """The section of the method in params.yaml."""
        phase = PHASES.get(self.key.method)
        return f"adapt.{phase}" if phase else f"method.{self.kind}"

    def key_of(self, name: str) -> str:
        """Return the key of params.yaml that decides a value of this run's section `train`."""
        is_own = vars(self.algorithm.train)[name] is not None
        return f"{self.section}.train.{name}" if is_own else f"train.{name}"

    def reason_against_problems(self, count: int) -> str | None:
        """Why a training split of so many problems is too small; None if it is not."""
        if (size := self.train.prompts_per_collect) <= count:
            return None
        return (
            f"{self.key_of('prompts_per_collect')}: {size} problems are more than the {count} of"
            f" {self.key.task}'s training split ({self.key.method}); lower it, or prepare more"
        )

    @property
    def reason_against_sampling(self) -> str | None:
        """Why the algorithm cannot learn from rollouts of section `sampling`; None if it can."""
        reason = self.algorithm.reason_against(self.sampling)
        if self.sampling.threshold is not None and self.algorithm.fixes_steps:
            reason = "samples in steps of its own; set sampling.threshold to null"
        return None if reason is None else f"method.{self.key.method}: {reason}"

    @property
    def reason_against_task(self) -> str | None:
        """Why the algorithm cannot learn from the task; None if it can."""
        if self.algorithm.wants_gold_answers and not self.data.has_gold_answers:
            return (
                f"method.{self.key.method}: needs one gold answer of a problem, and"
                f" {self.key.task} has none"
            )
        return None

    @property
    def reason_against_reuse(self) -> str | None:
        """Why the updates of a collect cannot be made again; None if they can."""
        if self.train.reuse > 1 and self.algorithm.depends_on_length:
            return f"{self.section}: counts collects as updates; set train.reuse to 1"
        return None

    @property
    def reason_against_shards(self) -> str | None:
        """Why this run cannot train with a sharded base; None if it can."""
        if self.train.weights == "all":
            return f"launch.shard: {self.key.method} trains all weights; only frozen ones are split"
        return None


def warmup_notes(run: RunSettings, settings: TrainConfig) -> list[str]:
    """Return what a user may not expect of the warm-up, a line each."""
    own, lines = run.algorithm.train, []
    if None not in (settings.warmup_ratio, own.warmup_updates) and own.warmup_ratio is None:
        lines.append(
            f"train.warmup_ratio overrides {run.section}.train.warmup_updates"
            f" {own.warmup_updates}; set warmup_ratio there too, or to null here"
        )
    if settings.warmup_updates >= settings.updates:
        lines.append(
            f"the warm-up takes {settings.warmup_updates} updates and the run {settings.updates}:"
            f" {run.key_of('learning_rate')} is never reached; lower"
            f" {run.key_of('warmup_updates')} or warmup_ratio"
        )
    return lines
