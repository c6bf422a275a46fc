"""params.yaml as frozen pydantic models: every key, type and combination is checked here, before anything loads.

Code defaults are the published d-OPSD settings (preset `reference`); params.yaml carries those of the embedded model.
"""

from __future__ import annotations

from typing import Self

from pydantic import Field, ValidationError, model_validator

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
from dopsd.models.config import ModelConfig
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

    def of(self, method: str) -> Self:
        """These settings for a method or a variant: with what it changes in its own section and in section `train`."""
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
            self.model,
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
            self.model,
            self.sampling,
            (self.of(method) if method else self).train.lora,
            self.evaluate.bootstrap,
            self.launch.shard,
        )

    @property
    def embedded_base(self) -> BaseSettings:
        """Return what pretraining the embedded base depends on, beside its data."""
        return BaseSettings(self.pretrain, self.sampling.gen_length, self.model.prompt_style)

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
                f"ablate.variants.{variant}.train: expected keys of section train, found {train_overrides!r}"
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

    @model_validator(mode="after")
    def sections_agree(self) -> Self:
        if self.select.protocol not in self.evaluate.protocols:
            known = ", ".join(self.evaluate.protocols)
            raise ValueError(
                f"select.protocol {self.select.protocol!r} is not one of evaluate.protocols ({known})"
            )
        if words := self.evaluate.protocols[self.select.protocol].approximations:
            raise ValueError(
                f"select.protocol {self.select.protocol!r} is approximate ({', '.join(words)})"
            )
        cached = [
            name for name, protocol in self.evaluate.protocols.items() if protocol.cache != "none"
        ]
        if cached and (self.model.attention != "sdpa" or self.model.compile):
            raise ValueError(
                f"evaluate.protocols.{cached[0]}.cache needs model.attention sdpa, and model.compile false"
            )
        for name, config in vars(self.method).items():
            self._check_states(f"method.{name}", config)
        with_prompt_file = [task for task in self.matrix.tasks if vars(self.data)[task].prompt_file]
        if with_prompt_file and self.model.prompt_style == "compact":
            raise ValueError(
                f"data.{with_prompt_file[0]}.prompt_file is not read with model.prompt_style compact: set instructions"
            )
        if self.launch.shard:
            self._check_shard()
        for method in self.matrix.methods:
            if self.launch.processes > self.of(method).train.prompts_per_collect:
                raise ValueError(
                    f"launch.processes must be at most train.prompts_per_collect of {method}: a prompt for each"
                )
            without_solutions = [
                t for t in self.matrix.tasks if not vars(self.data)[t].has_solutions
            ]
            if without_solutions and vars(self.method)[method].wants_solutions:
                raise ValueError(
                    f"matrix.methods: {method} needs reference solutions, and {without_solutions[0]} has none: leave one out"
                )
        return self

    def _check_shard(self) -> None:
        """In parts over processes, all of them must make the same forwards, of weights as they are in the file."""
        if (
            self.model.quantization != "none"
            or self.model.attention == "auto"
            or self.model.compile
        ):
            raise ValueError(
                "launch.shard: needs model.quantization none, compile false, attention sdpa or flash_attention_2"
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
                f"sampling: one block only, and {key}.record_last_block is false: no state to train on"
            )
        if config.reveal_scope == "all_masked" and config.reveal_ratio == 1:
            raise ValueError(
                f"{key}.reveal_ratio 1 with reveal_scope all_masked: nothing is left to learn"
            )
        if config.updates_per_trajectory > s.steps:
            raise ValueError(
                f"{key}.updates_per_trajectory must be at most sampling.steps {s.steps}"
            )
