"""Sections about weights: the base model and the adapter."""

from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from dopsd.core.paths import BASES
from dopsd.core.settings import Count, Positive, Section

Dtype = Literal["float32", "bfloat16"]
AnyDtype = Literal["auto", "float32", "bfloat16"]
Quantization = Literal["none", "nf4"]
Attention = Literal["auto", "sdpa", "flash_attention_2"]
Alignment = Literal["sequence", "completion"]
Kernels = Literal["auto", "torch", "liger"]
Reference = Literal["base", "start"]
Weights = Literal["lora", "all"]
PromptStyle = Literal["compact", "instructions"]


class ModelConfig(Section):
    """The base model: a folder in the layout of the Hugging Face hub, and how it is computed."""

    path: str = "base/sudoku"  # folder with config.json, safetensors and a tokenizer
    # of weights and activations; bfloat16 halves the memory, and rounds; auto: bfloat16 on a GPU,
    # and on a CPU with AMX, else float32
    dtype: AnyDtype = "float32"
    quantization: Quantization = "none"  # nf4: 4-bit base weights; needs bfloat16 and a GPU
    attention: Attention = "sdpa"  # auto: flash_attention_2 where it can run, else sdpa
    kernels: Kernels = (
        "torch"  # liger: fused ones on a GPU; auto: liger for wide bases where it can run
    )
    compile: bool = False  # compile the blocks with torch.compile; changes results by rounding
    # replay forwards, and updates without dropout, as CUDA graphs; changes time and memory alone
    cuda_graphs: bool = False
    prompt_style: PromptStyle = "instructions"  # compact: the bare problem, for the embedded base
    block_size: Count | None = None  # of block-causal attention; null: what config.json says
    block_alignment: Alignment | None = None  # where blocks begin to count; null: as published

    @model_validator(mode="after")
    def kernels_and_dtypes_fit(self) -> Self:
        """Require bfloat16 for flash attention and for nf4."""
        for name, value in (("attention", "flash_attention_2"), ("quantization", "nf4")):
            if vars(self)[name] == value and self.dtype != "bfloat16":
                raise ValueError(f"{name}: {value} computes in bfloat16; set dtype to bfloat16")
        return self

    @model_validator(mode="after")
    def graphs_are_of_eager_forwards(self) -> Self:
        """Refuse CUDA graphs of compiled blocks, which choose their code while they run."""
        if self.cuda_graphs and self.compile:
            raise ValueError("cuda_graphs records blocks that are not compiled; set one to false")
        return self

    def decisive(self, *ignored: str) -> dict[str, Any]:
        """Return the values by which results are identified."""
        return super().decisive("cuda_graphs", *ignored)

    @property
    def has_auto(self) -> bool:
        """Whether a value depends on the machine."""
        return "auto" in (self.dtype, self.attention, self.kernels)


class ModelOverrides(Section):
    """Values that a task changes in section `model`; null keeps the section's value.

    `path` is a folder in base/: DVC's stages depend on that folder and find a task's base there
    only.
    """

    path: str | None = None  # a folder in base/, on which DVC's stages depend
    dtype: AnyDtype | None = None  # as model.dtype
    quantization: Quantization | None = None  # as model.quantization
    attention: Attention | None = None  # as model.attention
    kernels: Kernels | None = None  # as model.kernels
    compile: bool | None = None  # as model.compile
    prompt_style: PromptStyle | None = None  # as model.prompt_style
    block_size: Count | None = None  # as model.block_size
    block_alignment: Alignment | None = None  # as model.block_alignment

    @field_validator("path")
    @classmethod
    def path_is_below_bases(cls, path: str | None) -> str | None:
        """Require a folder in base/."""
        folder = PurePosixPath(path or BASES / "any")
        if PurePosixPath(BASES) not in folder.parents or ".." in folder.parts:
            raise ValueError(
                f"expected a folder in {BASES}/, on which DVC's stages depend; only model.path may"
                " name another"
            )
        return path

    def over(self, model: ModelConfig) -> ModelConfig:
        """Return the section with the values that are set here."""
        return ModelConfig.model_validate(model.model_dump() | self.model_dump(exclude_none=True))


class AdapterConfig(Section):
    """Shape of the LoRA adapter; the defaults are the published ones for LLaDA."""

    r: Count = 128  # rank of the update B A
    alpha: Count = 64  # the update is scaled by alpha / r
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.05  # 0: resumed and sharded runs are exact
    targets: list[str] = Field(  # names of the linear layers that get an adapter
        ["q_proj", "k_proj", "v_proj", "up_proj"], min_length=1
    )


class EmbeddedShape(Section):
    """Shape of the embedded model, a LLaDA of about a million parameters, or an SDAR in blocks."""

    d_model: Count = 128  # width of the hidden states
    n_layers: Count = 4  # transformer blocks
    n_heads: Count = 4  # attention heads
    mlp_hidden_size: Count = 384  # width inside the feed-forward layers
    rope_theta: Positive = 100.0  # base of the rotary frequencies; low for short sequences
    block_size: Count | None = None  # makes base/<task>_blocks, block-causal; null: base/<task>

    @model_validator(mode="after")
    def heads_divide_width(self) -> Self:
        """Require heads of an even width, as rotary embeddings need."""
        if self.d_model % (2 * self.n_heads):
            raise ValueError(
                f"d_model {self.d_model} must be a multiple of 2 x n_heads {self.n_heads}"
            )
        return self
