"""params.yaml as frozen pydantic models: every key, type and combination is checked here, before anything loads.

Code defaults are the published d-OPSD settings (preset `reference`); params.yaml carries those of the embedded model.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from dopsd.config.base import Betas, Count, Natural, Positive, Section, Share
from dopsd.config.data import CountdownData, Data, Gsm8kData, Math500Data, RowData, Source, SudokuData, TaskData
from dopsd.config.methods import ArOpsd, Attempts, D3llm, DiffuGrpo, DOpsd, Methods, Own, Rft, Sft, Vrpo
from dopsd.config.model import Lora, Model, Pretrain, Protocol, Sampling

__all__ = [
    "Ablate",
    "ArOpsd",
    "Attempts",
    "Count",
    "CountdownData",
    "D3llm",
    "DOpsd",
    "Data",
    "DiffuGrpo",
    "Evaluate",
    "Gsm8kData",
    "Lora",
    "Math500Data",
    "Methods",
    "Model",
    "Own",
    "Params",
    "Pretrain",
    "Protocol",
    "Rft",
    "RowData",
    "Sampling",
    "Section",
    "Select",
    "Sft",
    "Share",
    "Source",
    "SudokuData",
    "TaskData",
    "Train",
    "VerifyTeacher",
    "Vrpo",
    "kind_of",
]

BETWEEN = "-"  # method-variant


class Matrix(Section):
    """The cells that train and all later stages run on: every task x method x seed."""

    tasks: list[str] = Field(["sudoku"], min_length=1)
    methods: list[str] = Field(["d_opsd"], min_length=1)
    seeds: list[Natural] = Field([0], min_length=1)

    @model_validator(mode="after")
    def names_exist(self) -> Self:
        for key, section in (("tasks", Data), ("methods", Methods)):
            known = sorted(section.model_fields)
            unknown = [name for name in vars(self)[key] if name not in known]
            if unknown:
                raise ValueError(f"{key}: {', '.join(unknown)}: unknown; there is {', '.join(known)}")
        return self


class Train(Section):
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
    micro_batch_states: Count = 64
    gradient_checkpointing: bool = False
    checkpoint_every: Count = 25
    max_empty_collects: Count = 50
    collapse_window: Count = 8
    collapse_drop: Share = 0.3
    stop_on_collapse: bool = False
    lora: Lora = Lora()


class Evaluate(Section):
    """How checkpoints are compared: `protocols` are decoding settings by name; selection uses select.protocol."""

    protocols: dict[str, Protocol] = Field(min_length=1)
    bootstrap: Annotated[int, Field(ge=100)] = 2000


class Select(Section):
    """Checkpoints are compared on this split under this one of evaluate.protocols."""

    split: Literal["validation", "test"] = "validation"
    protocol: str = "greedy"


class Launch(Section):
    """Processes that a stage starts on this machine, one a GPU; more than one goes through torchrun."""

    processes: Count = 1


class Tracking(Section):
    """Where runs go. `uri` null is an sqlite file in the project root; MLFLOW_TRACKING_URI goes before both."""

    enabled: bool = True
    uri: str | None = None
    experiment: str = "dopsd"
    registered_model: str = "dopsd"


class Ablate(Section):
    """One method's settings, a few changed at a time: what each variant changes, and which stand in one table."""

    task: str = "sudoku"
    method: str = "d_opsd"
    seeds: list[Natural] = Field([0], min_length=1)
    run: list[str] = Field([])
    variants: dict[str, dict[str, Any]] = Field({"default": {}}, min_length=1)
    tables: dict[str, list[str]] = Field({})

    @model_validator(mode="after")
    def names_exist(self) -> Self:
        if self.variants.get("default") != {}:
            raise ValueError("variants.default: expected {}: the settings as they stand in the method's section")
        for key, value, section in (("task", self.task, Data), ("method", self.method, Methods)):
            if value not in section.model_fields:
                raise ValueError(f"{key}: {value}: unknown; there is {', '.join(sorted(section.model_fields))}")
        lists = {f"tables.{name}": variants for name, variants in self.tables.items()} | {"run": self.run}
        for name, variants in lists.items():
            unknown = [variant for variant in variants if variant not in self.variants]
            if unknown:
                raise ValueError(f"{name}: expected names of ablate.variants, found {', '.join(unknown)}")
        return self


class VerifyTeacher(Section):
    """Is the base better when it sees part of its own answer? `problems` training questions (paper, Table 1)."""

    tasks: list[str] = Field([])
    problems: Count = 500
    attempts: Count = 8
    temperature: Annotated[float, Field(ge=0)] = 1.0
    reveal_ratios: list[Share] = Field([0.10, 0.25, 0.50], min_length=1)


def kind_of(method: str) -> str:
    """The method whose file computes it: of a variant `d_opsd-live_teacher` that is d_opsd."""
    return method.partition(BETWEEN)[0]


class Params(Section):
    matrix: Matrix = Matrix()
    data: Data = Data()
    model: Model = Model()
    pretrain: Pretrain = Pretrain()
    sampling: Sampling = Sampling()
    method: Methods = Methods()
    train: Train = Train()
    evaluate: Evaluate
    select: Select = Select()
    launch: Launch = Launch()
    verify_teacher: VerifyTeacher = VerifyTeacher()
    ablate: Ablate = Ablate()
    tracking: Tracking = Tracking()

    def of(self, method: str) -> Self:
        """These settings for a method or a variant: with what it changes in its own section and in section `train`."""
        kind, _, variant = method.partition(BETWEEN)
        config = self.changed(variant) if variant else vars(self.method)[kind]
        own = {name: value for name, value in vars(config.train).items() if value is not None}
        sections = {"method": self.method.model_copy(update={kind: config}), "train": self.train.model_copy(update=own)}
        return self.model_copy(update=sections)

    def changed(self, variant: str) -> Any:
        """The settings of method ablate.method as this one of ablate.variants has them."""
        config = vars(self.method)[self.ablate.method]
        changes = self.ablate.variants[variant]
        train = config.train.model_dump() | changes.get("train", {})
        return type(config).model_validate(config.model_dump() | changes | {"train": train})

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
                self.changed(name)
            except ValidationError as error:
                fault = error.errors()[0]
                key = ".".join(map(str, ("ablate.variants", name, *fault["loc"])))
                raise ValueError(f"{key}: {fault['msg'].removeprefix('Value error, ')}, found {fault['input']!r}") from error
        return self

    @model_validator(mode="after")
    def sections_agree(self) -> Self:
        if self.select.protocol not in self.evaluate.protocols:
            known = ", ".join(self.evaluate.protocols)
            raise ValueError(f"select.protocol {self.select.protocol!r} is not one of evaluate.protocols ({known})")
        s, d = self.sampling, self.method.d_opsd
        if s.gen_length == s.block_length and not d.record_last_block:
            raise ValueError("sampling: one block only, and method.d_opsd.record_last_block is false: no state to train on")
        if d.updates_per_trajectory > s.steps:
            raise ValueError(f"method.d_opsd.updates_per_trajectory must be at most sampling.steps {s.steps}")
        asked = [task for task in self.matrix.tasks if vars(self.data)[task].prompt_file]
        if asked and self.model.prompt_style == "compact":
            raise ValueError(f"data.{asked[0]}.prompt_file is not read with model.prompt_style compact: set instructions")
        if self.launch.processes > self.train.prompts_per_collect:
            raise ValueError("launch.processes must be at most train.prompts_per_collect: each needs a prompt of its own")
        return self
