"""params.yaml as frozen pydantic models: every key, type and combination is checked here, before anything loads.

Code defaults are the published d-OPSD settings (preset `reference`); params.yaml carries those of the embedded model.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Matrix(Section):
    """The cells that train and all later stages run on: every task x method x seed."""

    tasks: list[Literal["sudoku"]] = Field(["sudoku"], min_length=1)
    methods: list[Literal["d_opsd", "rft"]] = Field(["d_opsd"], min_length=1)
    seeds: list[Annotated[int, Field(ge=0)]] = Field([0], min_length=1)


class SudokuData(Section):
    """4x4 puzzles with one solution; counts are puzzles, `*_grids` solution grids (of 288) that a split owns."""

    train: Count = 4096
    validation: Count = 256
    test: Count = 256
    validation_grids: Annotated[int, Field(ge=1, le=143)] = 56
    test_grids: Annotated[int, Field(ge=1, le=143)] = 56
    blanks: Annotated[int, Field(ge=1, le=12)] = 8
    seed: int = 0
    test_file: str | None = None


class Data(Section):
    sudoku: SudokuData = SudokuData()


class Model(Section):
    path: str = "base"
    dtype: Literal["float32", "bfloat16"] = "float32"
    prompt_style: Literal["compact", "instructions"] = "instructions"


class Pretrain(Section):
    """The embedded model's shape and its masked-diffusion pretraining on worked solutions of one task."""

    task: Literal["sudoku"] = "sudoku"
    d_model: Count = 128
    n_layers: Count = 4
    n_heads: Count = 4
    mlp_hidden_size: Count = 384
    rope_theta: Positive = 100.0
    updates: Count = 800
    batch_size: Count = 64
    learning_rate: Positive = 3e-3
    betas: list[Annotated[float, Field(ge=0, lt=1)]] = Field([0.9, 0.98], min_length=2, max_length=2)
    warmup_updates: Annotated[int, Field(ge=0)] = 50
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    grad_clip: Positive = 1.0
    careful_share: Share = 0.5
    seed: int = 0

    @model_validator(mode="after")
    def heads_divide_width(self) -> Self:
        if self.d_model % (2 * self.n_heads):
            raise ValueError(f"d_model {self.d_model} must be a multiple of 2 x n_heads {self.n_heads}")
        return self


class Lora(Section):
    """Adapter shape. On LLaDA the published target list matches these four modules."""

    r: Count = 128
    alpha: Count = 64
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.05
    targets: list[str] = Field(["q_proj", "k_proj", "v_proj", "up_proj"], min_length=1)


class Sampling(Section):
    """Lengths and steps of a rollout: `steps` denoising steps fill `gen_length` tokens, block by block."""

    gen_length: Count = 256
    block_length: Count = 32
    steps: Count = 128
    gumbel_dtype: Literal["float32", "bfloat16"] = "float32"
    stop_after_eos: bool = False
    batch_size: Count = 64

    @model_validator(mode="after")
    def blocks_and_steps_fit(self) -> Self:
        blocks, rest = divmod(self.gen_length, self.block_length)
        if rest:
            raise ValueError(f"gen_length {self.gen_length} must be a multiple of block_length {self.block_length}")
        if self.steps % blocks or self.steps > self.gen_length:
            raise ValueError(
                f"steps {self.steps} must be a multiple of the {blocks} blocks and at most gen_length {self.gen_length}"
            )
        return self


class Attempts(Section):
    """pass@k collection, shared by the methods that learn from their own kept rollouts."""

    attempts: Count = 8
    first_temperature: Annotated[float, Field(ge=0)] = 0.9
    retry_temperature: Annotated[float, Field(ge=0)] = 0.9
    keep_threshold: Share = 0.25
    keep: Literal["correct", "all"] = "correct"
    skip_empty: bool = False
    denominator: Literal["prompts", "kept"] = "prompts"


class DOpsd(Attempts):
    """On-policy self-distillation with the self-future as teacher (arXiv 2606.18195); each switch: README, d-OPSD."""

    reveal_scope: Literal["future_blocks", "all_masked"] = "future_blocks"
    reveal_ratio: Share = 0.25
    record: Literal["until_eos", "all"] = "until_eos"
    record_last_block: bool = False
    drop_remainder: bool = True
    state_sample: Annotated[int, Field(ge=0)] = 0
    position_selection: Literal["teacher", "student"] = "teacher"
    teacher_confidence: Literal["max_logit", "max_prob"] = "max_logit"
    divergence: Literal["reverse_kl", "forward_kl", "jsd"] = "reverse_kl"
    jsd_beta: Annotated[float, Field(gt=0, lt=1)] = 0.5
    loss_vocabulary: Literal["full", "teacher_top_k"] = "teacher_top_k"
    top_k: Count = 20
    clip: Annotated[float, Field(gt=0)] | None = 0.05
    reduction: Literal["sum", "mean"] = "sum"
    teacher: Literal["base", "live", "ema"] = "base"
    ema_decay: Annotated[float, Field(ge=0, lt=1)] = 0.99
    updates_per_trajectory: Count = 4

    @model_validator(mode="after")
    def switches_agree(self) -> Self:
        if self.drop_remainder and self.state_sample:
            raise ValueError("state_sample draws from all states: set drop_remainder to false with it")
        return self


class Rft(Attempts):
    """Rejection fine-tuning: masked-diffusion cross-entropy on the same kept rollouts. Settings are ours."""

    draws_per_rollout: Count = 4
    updates_per_collect: Count = 1


class Methods(Section):
    d_opsd: DOpsd = DOpsd()
    rft: Rft = Rft()


class Train(Section):
    """The loop: a collect takes `prompts_per_collect` problems; `updates` counts optimizer steps."""

    updates: Count = 500
    prompts_per_collect: Count = 4
    learning_rate: Positive = 5e-6
    warmup_updates: Annotated[int, Field(ge=0)] = 1
    betas: list[Annotated[float, Field(ge=0, lt=1)]] = Field([0.9, 0.99], min_length=2, max_length=2)
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    grad_clip: Positive = 0.2
    micro_batch_states: Count = 64
    checkpoint_every: Count = 25
    max_empty_collects: Count = 50
    lora: Lora = Lora()


class Evaluate(Section):
    """How checkpoints are compared: `protocols` are decoding settings by name; selection uses select.protocol."""

    protocols: dict[str, Sampling] = Field(min_length=1)
    bootstrap: Annotated[int, Field(ge=100)] = 2000


class Select(Section):
    """Checkpoints are compared on this split under this one of evaluate.protocols."""

    split: Literal["validation", "test"] = "validation"
    protocol: str = "greedy"


class Tracking(Section):
    """Where runs go. `uri` null is an sqlite file in the project root; MLFLOW_TRACKING_URI goes before both."""

    enabled: bool = True
    uri: str | None = None
    experiment: str = "dopsd"
    registered_model: str = "dopsd"


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
    tracking: Tracking = Tracking()

    @model_validator(mode="after")
    def grids_and_lengths_fit(self) -> Self:
        sudoku = self.data.sudoku
        if sudoku.validation_grids + sudoku.test_grids > 287:
            raise ValueError("data.sudoku: validation_grids and test_grids must leave grids of the 288 for training")
        if self.select.protocol not in self.evaluate.protocols:
            known = ", ".join(self.evaluate.protocols)
            raise ValueError(f"select.protocol {self.select.protocol!r} is not one of evaluate.protocols ({known})")
        if self.train.prompts_per_collect > sudoku.train:
            raise ValueError(f"train.prompts_per_collect must be at most the {sudoku.train} training problems")
        s, d = self.sampling, self.method.d_opsd
        if s.gen_length == s.block_length and not d.record_last_block:
            raise ValueError("sampling: one block only, and method.d_opsd.record_last_block is false: no state to train on")
        states = self.sampling.steps
        if self.method.d_opsd.updates_per_trajectory > states:
            raise ValueError(f"method.d_opsd.updates_per_trajectory must be at most sampling.steps {states}")
        return self
