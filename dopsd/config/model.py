"""Sections about weights: the base model, the embedded base's pretraining, the adapter, and decoding lengths."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dopsd.config.base import Betas, Count, Natural, Positive, Section, Share, Whole


class ModelConfig(Section):
    """The base: a folder in the layout of the Hugging Face hub, and how it is computed."""

    path: str = "base"
    dtype: Literal["float32", "bfloat16"] = "float32"
    quantization: Literal["none", "nf4"] = "none"
    attention: Literal["auto", "sdpa", "flash_attention_2"] = "sdpa"
    compile: bool = False  # torch.compile of the blocks
    prompt_style: Literal["compact", "instructions"] = "instructions"

    @model_validator(mode="after")
    def kernels_and_dtypes_fit(self) -> Self:
        for name, needs in (("attention", "flash_attention_2"), ("quantization", "nf4")):
            if vars(self)[name] == needs and self.dtype != "bfloat16":
                raise ValueError(
                    f"{name}: {needs} computes in bfloat16: set dtype to bfloat16 with it"
                )
        return self


class PretrainConfig(Section):
    """The embedded model's shape and its masked-diffusion pretraining on worked solutions of a task.

    `tasks` is empty where the base is a downloaded checkpoint: then there is nothing to pretrain. `recipe` stands for
    the code: raise it when pretraining's numbers change on purpose (tests/test_recipes.py holds them).
    """

    tasks: list[Literal["sudoku"]] = Field([], max_length=1)
    recipe: Count = 1
    d_model: Count = 128
    n_layers: Count = 4
    n_heads: Count = 4
    mlp_hidden_size: Count = 384
    rope_theta: Positive = 100.0
    updates: Count = 800
    batch_size: Count = 64
    learning_rate: Positive = 3e-3
    betas: Betas = Field([0.9, 0.98])
    warmup_updates: Natural = 50
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    grad_clip: Positive = 1.0
    careful_share: Share = 0.5
    seed: Whole = 0

    @model_validator(mode="after")
    def heads_divide_width(self) -> Self:
        if self.d_model % (2 * self.n_heads):
            raise ValueError(
                f"d_model {self.d_model} must be a multiple of 2 x n_heads {self.n_heads}"
            )
        return self


class AdapterConfig(Section):
    """Adapter shape. On LLaDA the published target list matches these four modules."""

    r: Count = 128
    alpha: Count = 64
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.05
    targets: list[str] = Field(["q_proj", "k_proj", "v_proj", "up_proj"], min_length=1)


class SamplingConfig(Section):
    """Lengths and steps of a rollout: `steps` denoising steps fill `gen_length` tokens, block by block."""

    gen_length: Count = 256
    block_length: Count = 32
    steps: Count = 128
    gumbel_dtype: Literal["float32", "bfloat16"] = "float32"
    stop_after_eos: bool = False
    batch_size: Count = 64
    prefill: str = ""  # how the answer starts, given to the model after the prompt
    max_prompt_tokens: Count | None = None  # keep a prompt's last so many tokens; null: never cut

    @model_validator(mode="after")
    def blocks_and_steps_fit(self) -> Self:
        blocks, rest = divmod(self.gen_length, self.block_length)
        if rest:
            raise ValueError(
                f"gen_length {self.gen_length} must be a multiple of block_length {self.block_length}"
            )
        if self.steps % blocks or self.steps > self.gen_length:
            raise ValueError(
                f"steps {self.steps} must be a multiple of the {blocks} blocks and at most gen_length {self.gen_length}"
            )
        return self


class EvalProtocol(SamplingConfig):
    """How an evaluation decodes. `published` numbers came from unmasked padding and float16 autocast; ours mask."""

    mask_padding: bool = True
    autocast: Literal["none", "float16"] = "none"
    merged: bool = False  # adapters added into the weights: faster, and rounded in bfloat16
    threshold: Share | None = None  # commit all tokens of this confidence at once, and at least one
    cache: Literal["none", "prefix", "dual"] = (
        "none"  # keys and values kept through a block: before it, or all but it
    )

    @property
    def approximations(self) -> list[str]:
        """What makes its answers others than those of the sampler that the model was trained with."""
        found = [] if self.threshold is None else [f"tokens of confidence {self.threshold} at once"]
        return found if self.cache == "none" else [*found, f"{self.cache} cache"]
