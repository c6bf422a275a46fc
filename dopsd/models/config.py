"""Sections about weights: the base model and the adapter."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from dopsd.core.paths import BASES
from dopsd.core.settings import Count, Positive, Section

Dtype = Literal["float32", "bfloat16"]
Quantization = Literal["none", "nf4"]
Attention = Literal["auto", "sdpa", "flash_attention_2"]
PromptStyle = Literal["compact", "instructions"]


class ModelConfig(Section):
    """The base: a folder in the layout of the Hugging Face hub, and how it is computed."""

    path: str = "base/sudoku"
    dtype: Dtype = "float32"
    quantization: Quantization = "none"
    attention: Attention = "sdpa"
    compile: bool = False  # torch.compile of the blocks
    prompt_style: PromptStyle = "instructions"

    @model_validator(mode="after")
    def kernels_and_dtypes_fit(self) -> Self:
        for name, value in (("attention", "flash_attention_2"), ("quantization", "nf4")):
            if vars(self)[name] == value and self.dtype != "bfloat16":
                raise ValueError(
                    f"{name}: {value} computes in bfloat16: set dtype to bfloat16 with it"
                )
        return self


class ModelOverrides(Section):
    """What a task has of its own in section `model`; null: as it stands there.

    `path` is a folder in base/, so that DVC's stages, which name a task's base by no other way,
    depend on it.
    """

    path: str | None = None
    dtype: Dtype | None = None
    quantization: Quantization | None = None
    attention: Attention | None = None
    compile: bool | None = None
    prompt_style: PromptStyle | None = None

    @field_validator("path")
    @classmethod
    def path_is_below_bases(cls, path: str | None) -> str | None:
        folder = PurePosixPath(path or BASES / "any")
        if PurePosixPath(BASES) not in folder.parents or ".." in folder.parts:
            raise ValueError(
                f"expected a folder in {BASES}/, on which DVC's stages depend; elsewhere lies that"
                " of model.path alone"
            )
        return path

    def over(self, model: ModelConfig) -> ModelConfig:
        """Return the section with what is set here."""
        return ModelConfig.model_validate(model.model_dump() | self.model_dump(exclude_none=True))


class AdapterConfig(Section):
    """Adapter shape. On LLaDA the published target list matches these four modules."""

    r: Count = 128
    alpha: Count = 64
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.05
    targets: list[str] = Field(["q_proj", "k_proj", "v_proj", "up_proj"], min_length=1)


class EmbeddedShape(Section):
    """The shape of the embedded model, a LLaDA of about a million parameters."""

    d_model: Count = 128
    n_layers: Count = 4
    n_heads: Count = 4
    mlp_hidden_size: Count = 384
    rope_theta: Positive = 100.0

    @model_validator(mode="after")
    def heads_divide_width(self) -> Self:
        if self.d_model % (2 * self.n_heads):
            raise ValueError(
                f"d_model {self.d_model} must be a multiple of 2 x n_heads {self.n_heads}"
            )
        return self
