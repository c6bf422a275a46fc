"""Sections about decoding: lengths and steps of a rollout, and how evaluations decode."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dopsd.core.settings import Count, Section, Share


class SamplingConfig(Section):
    """Lengths and steps of a rollout: `steps` denoising steps fill `gen_length` tokens, block by
    block.
    """

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
        blocks, remainder = divmod(self.gen_length, self.block_length)
        if remainder:
            raise ValueError(
                f"gen_length {self.gen_length} must be a multiple of block_length"
                f" {self.block_length}"
            )
        if self.steps % blocks or self.steps > self.gen_length:
            raise ValueError(
                f"steps {self.steps} must be a multiple of the {blocks} blocks and at most"
                f" gen_length {self.gen_length}"
            )
        return self


class EvalProtocol(SamplingConfig):
    """How an evaluation decodes. `published` numbers came from unmasked padding and float16
    autocast; ours mask.
    """

    mask_padding: bool = True
    autocast: Literal["none", "float16"] = "none"
    merged: bool = False  # adapters added into the weights: faster, and rounded in bfloat16
    threshold: Share | None = None  # commit all tokens of this confidence at once, and at least one
    cache: Literal["none", "prefix", "dual"] = (
        "none"  # keys and values kept through a block: before it, or all but it
    )

    @property
    def approximations(self) -> list[str]:
        """What makes its answers others than those of the sampler that the model was trained
        with.
        """
        descriptions = (
            [] if self.threshold is None else [f"tokens of confidence {self.threshold} at once"]
        )
        return descriptions if self.cache == "none" else [*descriptions, f"{self.cache} cache"]


class CollectorConfig(Section):
    """pass@k: how often a problem is tried, at which temperatures, and which attempt is kept."""

    attempts: Count = 8
    first_temperature: Annotated[float, Field(ge=0)] = 0.9
    retry_temperature: Annotated[float, Field(ge=0)] = 0.9
    keep_threshold: Share = 0.25
    keep: Literal["correct", "all"] = "correct"
