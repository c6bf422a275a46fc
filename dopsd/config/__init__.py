"""params.yaml as frozen pydantic models: every key, type and combination is checked here, before anything loads.

Code defaults are the published d-OPSD settings (preset `reference`); params.yaml carries those of the embedded model.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from dopsd.config.base import LARGEST, Betas, Count, Name, Natural, Positive, Section, Share
from dopsd.config.data import (
    CountdownConfig,
    Gsm8kConfig,
    Math500Config,
    RowTaskConfig,
    Source,
    SudokuConfig,
    TaskConfig,
    TasksConfig,
)
from dopsd.config.experiments import AblateConfig, CompareConfig, VerifyTeacherConfig
from dopsd.config.methods import (
    AlgorithmConfig,
    AlgorithmsConfig,
    ArOpsdConfig,
    CollectorConfig,
    D3llmConfig,
    DiffuGrpoConfig,
    DOpsdConfig,
    RftConfig,
    SftConfig,
    TrainOverrides,
    VrpoConfig,
)
from dopsd.config.model import (
    AdapterConfig,
    EvalProtocol,
    ModelConfig,
    PretrainConfig,
    SamplingConfig,
)

__all__ = [
    "AUTO",
    "AblateConfig",
    "AdapterConfig",
    "AlgorithmsConfig",
    "ArOpsdConfig",
    "CollectorConfig",
    "CompareConfig",
    "Count",
    "CountdownConfig",
    "D3llmConfig",
    "DOpsdConfig",
    "DiffuGrpoConfig",
    "EvalProtocol",
    "EvaluateConfig",
    "Gsm8kConfig",
    "Math500Config",
    "ModelConfig",
    "Params",
    "PretrainConfig",
    "RftConfig",
    "RowTaskConfig",
    "SamplingConfig",
    "Section",
    "SelectConfig",
    "SftConfig",
    "Share",
    "Source",
    "SudokuConfig",
    "TaskConfig",
    "TasksConfig",
    "TrainConfig",
    "TrainOverrides",
    "VerifyTeacherConfig",
    "VrpoConfig",
    "kind_of",
]

BETWEEN = "-"  # method-variant
AUTO = "auto"  # train.micro_batch_states: as memory was measured to hold
GUESS = 8  # micro_batch_states, where a number is needed before anything could be measured


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


class TrainConfig(Section):
    """The loop: a collect takes `prompts_per_collect` problems; `updates` counts optimizer steps.

    A method's own section may change what stands here: method.NAME.train.
    """

    updates: Count = 500
    prompts_per_collect: Count = 4
    learning_rate: Positive = 5e-6
    schedule: Literal["constant", "cosine"] = "constant"
    warmup_updates: Natural = 1
    betas: Betas = Field([0.9, 0.99])
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    grad_clip: Positive = 0.2
    micro_batch_states: Count | Literal["auto"] = 64
    gradient_checkpointing: bool = False
    checkpoint_every: Count = 25
    max_empty_collects: Count = 50
    collapse_window: Count = 8
    collapse_drop: Share = 0.3
    collapse_errors: Positive = 4.0
    stop_on_collapse: bool = False
    lora: AdapterConfig = AdapterConfig()

    @property
    def states_at_once(self) -> int:
        """micro_batch_states, or a guess at what will be measured."""
        return GUESS if isinstance(self.micro_batch_states, str) else self.micro_batch_states


class EvaluateConfig(Section):
    """How checkpoints are compared: `protocols` are decoding settings by name; selection uses select.protocol."""

    protocols: dict[Name, EvalProtocol] = Field(min_length=1)
    bootstrap: Annotated[int, Field(ge=100, le=LARGEST)] = 2000


class SelectConfig(Section):
    """Checkpoints are compared on this split under this one of evaluate.protocols."""

    split: Literal["validation", "test"] = "validation"
    protocol: str = "greedy"


class LaunchConfig(Section):
    """Processes that a stage starts on this machine, one a GPU; more than one goes through torchrun."""

    processes: Count = 1
    shard: bool = (
        False  # the frozen base in parts over the processes, where a card does not hold it whole
    )


class TrackingConfig(Section):
    """Where runs go. `uri` null is an sqlite file in the project root; MLFLOW_TRACKING_URI goes before both."""

    enabled: bool = True
    uri: str | None = None
    experiment: Annotated[str, Field(min_length=1, max_length=500)] = "dopsd"
    registered_model: Name = "dopsd"


def kind_of(method: str) -> str:
    """The method whose file computes it: of a variant `d_opsd-live_teacher` that is d_opsd."""
    return method.partition(BETWEEN)[0]


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
        own = {name: value for name, value in vars(config.train).items() if value is not None}
        sections = {
            "method": self.method.model_copy(update={kind: config}),
            "train": self.train.model_copy(update=own),
        }
        return self.model_copy(update=sections)

    def changed(self, variant: str) -> Any:
        """The settings of method ablate.method as this one of ablate.variants has them."""
        config = vars(self.method)[self.ablate.method]
        changes = self.ablate.variants[variant]
        own = changes.get("train", {})
        if not isinstance(own, dict):
            raise ValueError(
                f"ablate.variants.{variant}.train: expected keys of section train, found {own!r}"
            )
        return type(config).model_validate(
            config.model_dump() | changes | {"train": config.train.model_dump() | own}
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
        asked = [task for task in self.matrix.tasks if vars(self.data)[task].prompt_file]
        if asked and self.model.prompt_style == "compact":
            raise ValueError(
                f"data.{asked[0]}.prompt_file is not read with model.prompt_style compact: set instructions"
            )
        if self.launch.shard:
            self._check_shard()
        for method in self.matrix.methods:
            if self.launch.processes > self.of(method).train.prompts_per_collect:
                raise ValueError(
                    f"launch.processes must be at most train.prompts_per_collect of {method}: a prompt for each"
                )
            bare = [t for t in self.matrix.tasks if not vars(self.data)[t].has_solutions]
            if bare and vars(self.method)[method].wants_solutions:
                raise ValueError(
                    f"matrix.methods: {method} needs reference solutions, and {bare[0]} has none: leave one out"
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
            if fault := self.of(method).unshardable(method):
                raise ValueError(fault)

    def unshardable(self, method: str) -> str | None:
        """Why this method, or variant, cannot be trained with a base in parts, or None; of `of(method)`."""
        if self.train.micro_batch_states == AUTO:
            return f"launch.shard: train.micro_batch_states of {method} must be a number"
        if vars(self.method)[kind_of(method)].has_uneven_forwards:
            return f"launch.shard: {method} makes more forwards for some batches than for others: leave it out"
        return None

    def _check_states(self, key: str, config: AlgorithmConfig) -> None:
        """Whether a trajectory has states to train on, for methods that distil at every step."""
        if not isinstance(config, DOpsdConfig):
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
