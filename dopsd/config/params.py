"""params.yaml as frozen pydantic models: every key, type and combination is checked here, before
anything loads.

Code defaults are the published d-OPSD settings (preset `reference`); params.yaml carries those of
the embedded model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, PrivateAttr, ValidationError, model_validator

from dopsd.algorithms.common.config import (
    BETWEEN,
    AlgorithmConfig,
    SelfDistillationConfig,
    kind_of,
)
from dopsd.analysis.config import AblateConfig, CompareConfig
from dopsd.config.algorithms import AlgorithmsConfig
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
        for name in self.ablate.variants:
            try:
                self._check_states(f"ablate.variants.{name}", self.changed(name))
            except ValidationError as error:
                fault = error.errors()[0]
                key = ".".join(map(str, ("ablate.variants", name, *fault["loc"])))
                raise ValueError(
                    f"{key}: {fault['msg'].removeprefix('Value error, ')}, found {fault['input']!r}"
                ) from error
        return self

    def _models(self) -> dict[str, ModelConfig]:
        """Section `model`, and what it is for each task that has something of its own, by key."""
        models = {"model": self.model}
        for task, config in vars(self.data).items():
            if config.model is not None:
                try:
                    models[f"data.{task}.model"] = self.model_of(task)
                except ValidationError as error:
                    reason = error.errors()[0]["msg"].removeprefix("Value error, ")
                    raise ValueError(f"data.{task}.model: {reason}") from error
        return models

    @model_validator(mode="after")
    def sections_agree(self) -> Self:
        if unknown := [name for name in self.verify_teacher.tasks if name not in vars(self.data)]:
            known = ", ".join(sorted(vars(self.data)))
            raise ValueError(f"verify_teacher.tasks: {unknown[0]}: unknown; there is {known}")
        models = self._models()
        self._check_protocols(models)
        for name, config in vars(self.method).items():
            self._check_states(f"method.{name}", config)
        if self.launch.shard:
            self._check_shard(models)
        self._check_matrix()
        return self

    def _check_protocols(self, models: dict[str, ModelConfig]) -> None:
        if self.select.protocol not in self.evaluate.protocols:
            known = ", ".join(self.evaluate.protocols)
            raise ValueError(
                f"select.protocol {self.select.protocol!r} is not one of evaluate.protocols"
                f" ({known})"
            )
        if words := self.evaluate.protocols[self.select.protocol].approximations:
            raise ValueError(
                f"select.protocol {self.select.protocol!r} is approximate ({', '.join(words)})"
            )
        cached = [
            name for name, protocol in self.evaluate.protocols.items() if protocol.cache != "none"
        ]
        for key, model in models.items():
            if cached and (model.attention != "sdpa" or model.compile):
                raise ValueError(
                    f"evaluate.protocols.{cached[0]}.cache needs {key}.attention sdpa, and"
                    f" {key}.compile false"
                )

    def _check_matrix(self) -> None:
        for task in self.matrix.tasks:
            if vars(self.data)[task].prompt_file and self.model_of(task).prompt_style == "compact":
                raise ValueError(
                    f"data.{task}.prompt_file is not read with model.prompt_style compact: set"
                    " instructions"
                )
        for method in self.matrix.methods:
            if self.launch.processes > self.of(method).train.prompts_per_collect:
                raise ValueError(
                    f"launch.processes must be at most train.prompts_per_collect of {method}: a"
                    " prompt for each"
                )
            without_solutions = [
                t for t in self.matrix.tasks if not vars(self.data)[t].has_solutions
            ]
            if without_solutions and vars(self.method)[method].wants_solutions:
                raise ValueError(
                    f"matrix.methods: {method} needs reference solutions, and"
                    f" {without_solutions[0]} has none: leave one out"
                )

    def _check_shard(self, models: dict[str, ModelConfig]) -> None:
        """In parts over processes, all of them must make the same forwards, of weights as they are
        in the file.
        """
        for key, model in models.items():
            if model.quantization != "none" or model.attention == "auto" or model.compile:
                raise ValueError(
                    f"launch.shard: needs {key}.quantization none, compile false, attention sdpa or"
                    " flash_attention_2"
                )
        merged = [name for name, protocol in self.evaluate.protocols.items() if protocol.merged]
        if merged:
            raise ValueError(
                f"launch.shard: evaluate.protocols.{merged[0]}.merged cannot be computed from parts"
            )
        for method in self.matrix.methods:
            if fault := self.run(self.matrix.tasks[0], method, 0).reason_against_shards:
                raise ValueError(fault)

    def _check_states(self, key: str, config: AlgorithmConfig) -> None:
        """Whether a trajectory has states to train on, for methods that distil at every step."""
        if not isinstance(config, SelfDistillationConfig):
            return
        s = self.sampling
        if s.gen_length == s.block_length and not config.record_last_block:
            raise ValueError(
                f"sampling: one block only, and {key}.record_last_block is false: no state to"
                " train on"
            )
        if config.reveal_scope == "all_masked" and config.reveal_ratio == 1:
            raise ValueError(
                f"{key}.reveal_ratio 1 with reveal_scope all_masked: nothing is left to learn"
            )
        if config.updates_per_trajectory > s.steps:
            raise ValueError(
                f"{key}.updates_per_trajectory must be at most sampling.steps {s.steps}"
            )
