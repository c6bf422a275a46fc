"""params.yaml as frozen pydantic models that check every key, type and combination.

The defaults in code are the published d-OPSD settings (preset `reference`). The repository's
params.yaml holds the settings of the embedded model.
"""

import re
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, PrivateAttr, model_validator

from dopsd.algorithms.common.config import BETWEEN, AlgorithmConfig, kind_of
from dopsd.algorithms.registry import ALGORITHMS, label, unknown_method, variant_of
from dopsd.config.consistency import check_sections, check_variants
from dopsd.config.tasks import AlgorithmsConfig, TasksConfig
from dopsd.core.errors import unknown
from dopsd.core.paths import RunKey
from dopsd.core.settings import Distinct, Name, Natural, Section
from dopsd.distributed.config import LaunchConfig
from dopsd.evaluation.config import EvalSettings, EvaluateConfig, SelectConfig, VerifyTeacherConfig
from dopsd.evaluation.speed import curve_protocols
from dopsd.models.config import ModelConfig, ModelOverrides
from dopsd.rollout.config import EvalProtocol, SamplingConfig
from dopsd.tracking.config import TrackingConfig
from dopsd.training.config import CheckpointsConfig, TrainConfig
from dopsd.training.pretraining.adapt import converted_folder, last_checkpoint
from dopsd.training.pretraining.config import AdaptConfig, BaseSettings, PretrainConfig
from dopsd.training.run_settings import ADAPTING, DISTILLING, PHASES, RunSettings


class CompareConfig(Section):
    """Settings of `dopsd compare`."""

    baseline: str = "diffu_grpo"  # the method whose best accuracy the others have to reach


class AblateConfig(Section):
    """Variants of one method with a few settings changed, and the tables that compare them."""

    task: str = "sudoku"  # the task of all variants
    method: str = "d_opsd"  # the method that the variants change
    seeds: Annotated[list[Natural], Distinct] = Field(
        [0], min_length=1
    )  # one run of each variant for each seed
    run: Annotated[list[str], Distinct] = Field([])  # variants that `dvc repro` runs too
    variants: dict[str, dict[str, Any]] = Field({"default": {}}, min_length=1)  # changes by name
    tables: dict[Name, Annotated[list[str], Distinct]] = Field({})  # variants of each table

    @model_validator(mode="after")
    def names_exist(self) -> Self:
        """Check the names of the method and all variants; section data has the task."""
        if self.variants.get("default") != {}:
            raise ValueError(
                "variants.default: expected {}, the unchanged settings of the method's section"
            )
        invalid = [name for name in self.variants if not re.fullmatch("[a-z0-9_]{1,100}", name)]
        if invalid:
            raise ValueError(
                f"variants: {invalid[0]!r}: expected lowercase letters, digits and _ in the name of"
                " a folder and a stage"
            )
        if self.method not in ALGORITHMS.names:
            raise ValueError(unknown(f"method: {self.method}", ALGORITHMS.names))
        lists = {f"tables.{name}": variants for name, variants in self.tables.items()} | {
            "run": self.run
        }
        for name, variants in lists.items():
            invalid = [variant for variant in variants if variant not in self.variants]
            if invalid:
                raise ValueError(
                    f"{name}: expected names of ablate.variants, found {', '.join(invalid)};"
                    " ablate.tables and ablate.run belong to ablate.variants: set them together,"
                    " such as --set 'ablate.tables={TABLE: [NAME]}' --set 'ablate.run=[]'"
                )
        return self


class MatrixConfig(Section):
    """The runs of the pipeline: every combination of task, method and seed."""

    tasks: Annotated[list[str], Distinct] = Field(
        ["sudoku"], min_length=1
    )  # names of tasks, keys of section data
    methods: Annotated[list[str], Distinct] = Field(
        ["d_opsd"], min_length=1
    )  # names of algorithms, keys of method
    seeds: Annotated[list[Natural], Distinct] = Field([0], min_length=1)  # one run for each seed

    @model_validator(mode="after")
    def names_exist(self) -> Self:
        """Check that every method is registered; tasks are checked with section data."""
        known = sorted(AlgorithmsConfig.model_fields)
        for name in self.methods:
            if name not in known:
                raise ValueError(unknown_method("methods:", name, known))
        return self


class Params(Section):
    """All settings of a project, section by section as in params.yaml.

    Only `dopsd.config`, `dopsd.pipeline`, `dopsd.cli` and `flows` see this object. The packages
    below receive the sections that they need (`run`, `evaluation`, `embedded_base`).
    """

    matrix: MatrixConfig = MatrixConfig()  # tasks, methods and seeds to run
    data: TasksConfig = TasksConfig()  # the problems of each task
    model: ModelConfig = ModelConfig()  # the base model
    pretrain: PretrainConfig = PretrainConfig()  # the embedded base
    adapt: AdaptConfig = AdaptConfig()  # an autoregressive model that becomes the base
    sampling: SamplingConfig = SamplingConfig()  # training rollouts
    method: AlgorithmsConfig = AlgorithmsConfig()  # the settings of each algorithm
    train: TrainConfig = TrainConfig()  # the training loop
    checkpoints: CheckpointsConfig = CheckpointsConfig()  # which are kept, and copied elsewhere
    evaluate: EvaluateConfig  # decoding protocols of evaluations
    select: SelectConfig = SelectConfig()  # how the best checkpoint is chosen
    launch: LaunchConfig = LaunchConfig()  # processes on this machine
    verify_teacher: VerifyTeacherConfig = VerifyTeacherConfig()  # `dopsd verify-teacher`
    ablate: AblateConfig = AblateConfig()  # `dopsd ablate`
    compare: CompareConfig = CompareConfig()  # `dopsd compare`
    tracking: TrackingConfig = TrackingConfig()  # MLflow
    _file: Path = PrivateAttr(Path("params.yaml"))

    @property
    def file(self) -> Path:
        """The file that these settings were read from."""
        return self._file

    def of(self, method: str) -> Self:
        """Return these settings with a method's or a variant's changes applied.

        Args:
            method: a method such as `rft`, a variant such as `d_opsd-live_teacher`, or one
                of PHASES.

        Returns:
            The settings with the variant's own section `method.<kind>`, and with the method's
            overrides in section `train`. A variant that `ablate` no longer has gets the settings
            of its method: its finished runs can still be looked at.
        """
        kind, _, variant = method.partition(BETWEEN)
        config = self.changed(variant) if method in self.variants else vars(self.method)[kind]
        config = vars(self.adapt)[PHASES[method]] if method in PHASES else config
        train_overrides = {
            name: value for name, value in vars(config.train).items() if value is not None
        }
        sections = {
            "method": self.method.model_copy(update={kind: config}),
            "train": self.train.model_copy(update=train_overrides),
        }
        return self.model_copy(update=sections)

    def run(self, task: str, method: str, seed: int) -> RunSettings:
        """Return the sections that one run needs, for a method, a variant or one of PHASES.

        A run of DISTILLING starts from the last checkpoint of ADAPTING, which must be there.
        """
        method_params, model = self.of(method), self.model_of(task)
        train = method_params.train
        if method in PHASES:
            own = {"path": str(converted_folder(self.adapt)), "quantization": "none"}
            model = model.model_copy(update=own)
            fixed = {"start_from": None, "reference": "base", "stop_on_collapse": False}
            train = train.model_copy(update=fixed)
        if method == DISTILLING:
            learnt = last_checkpoint(self.run(task, ADAPTING, seed))
            train = train.model_copy(update={"start_from": str(learnt)})
            if model.attention == "auto":  # flash attention takes no causal teacher
                model = model.model_copy(update={"attention": "sdpa"})
        return RunSettings(
            RunKey(task, method, seed),
            self.data.tasks[task],
            model,
            self.sampling,
            vars(method_params.method)[kind_of(method)],
            train,
            self.launch,
        )

    def name_of(self, method: str) -> str:
        """Return how reports name a method: with the variant that its settings are."""
        kind = kind_of(method)
        return label(method, variant_of(kind, vars(self.of(method).method)[kind]))

    def evaluation(
        self, task: str, method: str | None = None, base_of: str | None = None
    ) -> EvalSettings:
        """Return what an evaluation needs, for a method's checkpoints or for the base.

        Args:
            method: the method; None: the base is scored.
            base_of: the task whose base answers; None: `task`.
        """
        return EvalSettings(
            task,
            self.data.tasks[task],
            self.model_of(base_of or task),
            self.sampling,
            (self.of(method) if method else self).train.adapter,
            self.evaluate.bootstrap,
            self.launch.shard,
            self.launch.timeout,
        )

    @property
    def test_protocols(self) -> dict[str, EvalProtocol]:
        """The protocols of the test: those of `evaluate`, then the points of `evaluate.curve`.

        That of a race is not one of them, unless it also selects.
        """
        name, race = self.select.protocol, self.select.race
        protocols = {
            key: protocol
            for key, protocol in self.evaluate.protocols.items()
            if key == name or not race or key != race.protocol
        }
        return protocols | curve_protocols(name, protocols[name], self.evaluate.curve)

    @property
    def test_order(self) -> list[str]:
        """The names of the test's protocols, cheap points of `evaluate.curve` first."""
        own = self.evaluate.protocols
        return sorted(self.test_protocols, key=lambda name: name in own)

    def model_of(self, task: str) -> ModelConfig:
        """Return section `model` with the task's overrides `data.<task>.model` applied."""
        overrides: ModelOverrides | None = self.data.tasks[task].model
        return overrides.over(self.model) if overrides else self.model

    def embedded_base(self, task: str) -> BaseSettings:
        """Return the settings that decide a task's embedded base, in addition to its data."""
        overrides = vars(self.data.tasks[task])["pretrain"]
        changes = overrides.model_dump(exclude_none=True) if overrides else {}
        shape = self.pretrain.model_copy(update=changes)
        prompt_style = self.model_of(task).prompt_style
        return BaseSettings(shape, self.sampling.gen_length, prompt_style)

    @property
    def runs(self) -> list[RunSettings]:
        """Every run of the matrix that its task has the solutions for."""
        return [self.run(*pair, seed) for pair in self.pairs for seed in self.matrix.seeds]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Tasks and methods of the matrix that make runs."""
        m, unsolved = self.matrix, self.unsolved
        return [(t, n) for t in m.tasks for n in m.methods if (t, n) not in unsolved]

    @property
    def unsolved(self) -> list[tuple[str, str]]:
        """Tasks and methods of the matrix that make no run: these tasks have no solutions."""
        without = [t for t in self.matrix.tasks if not self.data.tasks[t].has_solutions]
        wanting = [n for n in self.matrix.methods if vars(self.method)[n].wants_solutions]
        return [(task, method) for task in without for method in wanting]

    def changed(self, variant: str) -> AlgorithmConfig:
        """Return the settings of `ablate.method` with one of `ablate.variants` applied.

        Raises:
            ValueError: if the variant's `train` is not a section.
            ValidationError: if the variant has an unknown key or a wrong value.
        """
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
    def tasks(self) -> list[str]:
        """The names of all tasks: the registered ones, and those that section data defines."""
        return list(self.data.tasks)

    @property
    def variants(self) -> list[str]:
        """The names that runs of the ablation's variants have, such as `d_opsd-live_teacher`."""
        return [f"{self.ablate.method}{BETWEEN}{name}" for name in self.ablate.variants]

    @property
    def methods(self) -> list[str]:
        """Every method name that a run may have: all methods, then variants, then PHASES."""
        adapting = self.adapt.phases if self.adapt.tasks else []
        return sorted(type(self.method).model_fields) + self.variants + adapting

    @model_validator(mode="after")
    def variants_are_sound(self) -> Self:
        """Check every variant of the ablation."""
        check_variants(self)
        return self

    @model_validator(mode="after")
    def sections_agree(self) -> Self:
        """Check that no two sections contradict each other."""
        check_sections(self)
        return self
