"""Sections `evaluate`, `select` and `verify_teacher`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from dopsd.core.settings import LARGEST, Count, Distinct, Name, Section, Share
from dopsd.rollout.config import EvalProtocol, SamplingConfig

if TYPE_CHECKING:
    from dopsd.models.config import AdapterConfig, ModelConfig
    from dopsd.tasks.common.config import TaskConfig


def divides_or_is_threshold(point: float) -> float:
    """Return a point of `evaluate.curve`."""
    if point >= 1 and (point < 2 or point != int(point)):  # noqa: PLR2004  # half of the steps
        raise ValueError("expected a whole number from 2 on, or a threshold below 1")
    return point


CurvePoint = Annotated[float, Field(gt=0), AfterValidator(divides_or_is_threshold)]


class VerifyTeacherConfig(Section):
    """Whether the base answers better when it sees part of its own answer (paper, Table 1)."""

    tasks: Annotated[list[str], Distinct] = Field([])  # tasks for which `dvc repro` runs it too
    problems: Count = 500  # the first problems of the training split
    attempts: Count = 8  # k of pass@k
    temperature: Annotated[float, Field(ge=0)] = 1.0  # of sampled attempts
    reveal_ratios: list[Share] = Field([0.10, 0.25, 0.50], min_length=1)  # share of tokens revealed
    answer_ratios: list[Share] = Field([0.50, 1.00])  # share of the right answer's, as in infill

    @model_validator(mode="after")
    def ratios_differ(self) -> Self:
        """Check that the ratios have different names in the results."""
        for name in ("reveal_ratios", "answer_ratios"):
            ratios = vars(self)[name]
            if len({f"{ratio:.2f}" for ratio in ratios}) < len(ratios):
                raise ValueError(
                    f"{name} must differ in their first two decimals, which name the rows"
                )
        return self


class EvaluateConfig(Section):
    """How evaluations decode and how their intervals are computed."""

    protocols: dict[Name, EvalProtocol] = Field(min_length=1)  # decoding settings by name
    bootstrap: Annotated[int, Field(ge=100, le=LARGEST)] = 2000  # resamples of an interval
    # faster copies of the selecting protocol, for the test: [8, 4, 2, 0.9] has an eighth to half of
    # its steps, and a threshold of 0.9
    curve: Annotated[list[CurvePoint], Distinct] = Field([])
    # tasks that are not trained, on whose test problems base and best checkpoint are scored too
    watch: Annotated[list[str], Distinct] = Field([])


class RaceConfig(Section):
    """Which checkpoints are scored exactly: successive halving on cheaper answers decides."""

    protocol: str  # one of evaluate.protocols, such as a faster one; it may be approximate
    first: Count = 32  # problems of the first round; each further round has twice as many
    leaders: Count = 2  # checkpoints that select.protocol scores at the end


class SelectConfig(Section):
    """How the best checkpoint of a run is selected."""

    split: Literal["validation", "test"] = "validation"  # the problems that decide
    protocol: str = "greedy"  # one of evaluate.protocols
    race: RaceConfig | None = None  # before it; null: `protocol` scores every checkpoint


@dataclass(frozen=True)
class EvalSettings:
    """The settings of an evaluation, except its protocol."""

    task: str
    data: TaskConfig
    model: ModelConfig
    sampling: SamplingConfig  # of training rollouts
    lora: AdapterConfig | None  # shape of the adapters; None: checkpoints hold all weights
    bootstrap: int  # resamples of an interval
    shard: bool  # the base is split over the processes
    timeout: int  # launch.timeout: seconds to wait for another process
