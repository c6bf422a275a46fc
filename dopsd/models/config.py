"""Sections about weights: the base model and the adapter."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dopsd.core.settings import Count, Positive, Section


class ModelConfig(Section):
    """The base: a folder in the layout of the Hugging Face hub, and how it is computed."""

    path: str = "base/sudoku"
    dtype: Literal["float32", "bfloat16"] = "float32"
    quantization: Literal["none", "nf4"] = "none"
    attention: Literal["auto", "sdpa", "flash_attention_2"] = "sdpa"
    compile: bool = False  # torch.compile of the blocks
    prompt_style: Literal["compact", "instructions"] = "instructions"

    @model_validator(mode="after")
    def kernels_and_dtypes_fit(self) -> Self:
        for name, value in (("attention", "flash_attention_2"), ("quantization", "nf4")):
            if vars(self)[name] == value and self.dtype != "bfloat16":
                raise ValueError(
                    f"{name}: {value} computes in bfloat16: set dtype to bfloat16 with it"
                )
        return self


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
