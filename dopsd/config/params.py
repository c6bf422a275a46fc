"""params.yaml as frozen pydantic models: every key, type and combination is checked here, before
anything loads.

Code defaults are the published d-OPSD settings (preset `reference`); params.yaml carries those of
the embedded model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, PrivateAttr, model_validator

from dopsd.algorithms.common.config import BETWEEN, AlgorithmConfig, kind_of
from dopsd.analysis.config import AblateConfig, CompareConfig
from dopsd.config.algorithms import AlgorithmsConfig
from dopsd.config.consistency import check_sections, check_variants
from dopsd.config.tasks import TasksConfig
from dopsd.core.paths import RunKey
from dopsd.core.settings import Natural, Section
from dopsd.distributed.config import LaunchConfig
from dopsd.evaluation.config import EvaluateConfig, SelectConfig, VerifyTeacherConfig
from dopsd.evaluation.settings import EvalSettings
from dopsd.models.config import ModelConfig, ModelOverrides
from dopsd.rollout.config import SamplingConfig
from dopsd.tracking.config import TrackingConfig
from dopsd.training.config import TrainConfig
from dopsd.training.pretrain_config import BaseSettings, PretrainConfig
from dopsd.training.run_settings import RunSettings


class MatrixConfig(Section):
    """The cells that train and all later stages run on: every task x method x seed."""

    tasks: list[str] = Field(["sudoku"], min_length=1)
    methods: list[str] = Field(["d_opsd"], min_length=1)
    seeds: list[Natural] = Field([0], min_length=1)

    @model_validator(mode="after")
    def names_exist(self) -> Self:
        for key, section in (("tasks", TasksConfig), ("methods", AlgorithmsConfig)):
            known = sorted(section.model_fields)
            unknown = [name for name in vars(self)[key] if name not in known]
            if unknown:
                raise ValueError(
                    f"{key}: {', '.join(unknown)}: unknown; there is {', '.join(known)}"
                )
        return self


class Params(Section):
    matrix: MatrixConfig = MatrixConfig()
    data: TasksConfig = TasksConfig()
    model: ModelConfig = ModelConfig()
    pretrain: PretrainConfig = PretrainConfig()
    sampling: SamplingConfig = SamplingConfig()
    method: AlgorithmsConfig = AlgorithmsConfig()
    train: TrainConfig = TrainConfig()
    evaluate: EvaluateConfig
    select: SelectConfig = SelectConfig()
    launch: LaunchConfig = LaunchConfig()
    verify_teacher: VerifyTeacherConfig = VerifyTeacherConfig()
    ablate: AblateConfig = AblateConfig()
    compare: CompareConfig = CompareConfig()
    tracking: TrackingConfig = TrackingConfig()
    _file: Path = PrivateAttr(Path("params.yaml"))

    @property
    def file(self) -> Path:
        """The file that these settings were read from."""
        return self._file

    def of(self, method: str) -> Self:
        """These settings for a method or a variant: with what it changes in its own section and in
        section `train`.
        """
        kind, _, variant = method.partition(BETWEEN)
        config = self.changed(variant) if variant else vars(self.method)[kind]
        train_overrides = {
            name: value for name, value in vars(config.train).items() if value is not None
        }
        sections = {
            "method": self.method.model_copy(update={kind: config}),
            "train": self.train.model_copy(update=train_overrides),
        }
        return self.model_copy(update=sections)

    def run(self, task: str, method: str, seed: int) -> RunSettings:
        """Return the sections of one run, of a method or of a variant."""
        method_params = self.of(method)
        return RunSettings(
            RunKey(task, method, seed),
            vars(self.data)[task],
            self.model_of(task),
            self.sampling,
            vars(method_params.method)[kind_of(method)],
            method_params.train,
            self.launch,
        )

    def evaluation(self, task: str, method: str | None = None) -> EvalSettings:
        """Return what evaluating adapters of a method, or the base, on a task needs."""
        return EvalSettings(
            task,
            vars(self.data)[task],
            self.model_of(task),
            self.sampling,
            (self.of(method) if method else self).train.lora,
            self.evaluate.bootstrap,
            self.launch.shard,
        )

    def model_of(self, task: str) -> ModelConfig:
        """Return section `model` as it is for a task: with what the task has of its own."""
        overrides: ModelOverrides | None = vars(self.data)[task].model
        return overrides.over(self.model) if overrides else self.model

    def embedded_base(self, task: str) -> BaseSettings:
        """Return what pretraining a task's embedded base depends on, beside its data."""
        prompt_style = self.model_of(task).prompt_style
        return BaseSettings(self.pretrain, self.sampling.gen_length, prompt_style)

    @property
    def runs(self) -> list[RunSettings]:
        """Every run of the matrix."""
        m = self.matrix
        return [self.run(t, n, s) for t in m.tasks for n in m.methods for s in m.seeds]

    def changed(self, variant: str) -> AlgorithmConfig:
        """The settings of method ablate.method as this one of ablate.variants has them."""
        config: AlgorithmConfig = vars(self.method)[self.ablate.method]
        changes = self.ablate.variants[variant]
        train_overrides = changes.get("train", {})
        if not isinstance(train_overrides, dict):
            raise ValueError(
                f"ablate.variants.{variant}.train: expected keys of section train, found"
                f" {train_overrides!r}"
            )
        return type(config).model_validate(
            config.model_dump() | changes | {"train": config.train.model_dump() | train_overrides}
        )

    @property
    def variants(self) -> list[str]:
        return [f"{self.ablate.method}{BETWEEN}{name}" for name in self.ablate.variants]

    @property
    def methods(self) -> list[str]:
        """Every name that a run may have: methods, and the variants of one."""
        return sorted(type(self.method).model_fields) + self.variants

    @model_validator(mode="after")
    def variants_are_sound(self) -> Self:
        check_variants(self)
        return self

    @model_validator(mode="after")
    def sections_agree(self) -> Self:
        check_sections(self)
        return self
