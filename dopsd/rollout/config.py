"""Sections about decoding: lengths and steps of a rollout, and how evaluations decode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from dopsd.core.settings import Count, Section, Share

if TYPE_CHECKING:
    from dopsd.models.policy import Forward

Order = Literal["probability", "tempered_probability", "entropy", "margin"]
PROBABILITIES = ("probability", "tempered_probability")
TopP = Annotated[float, Field(gt=0, le=1)]


class SamplingConfig(Section):
    """Lengths and steps of a rollout, which is denoised block by block."""

    gen_length: Count = 256  # tokens of a completion
    block_length: Count = 32  # tokens of a block; divides gen_length
    steps: Count = 128  # denoising steps of the whole completion; a multiple of the blocks
    gumbel_dtype: Literal["float32", "bfloat16"] = "float32"  # bfloat16: the published noise
    order: Order = "probability"  # what ranks the tokens of a block, of which the first commit
    top_p: TopP | None = None  # sample from the likeliest tokens that hold this share; null: all
    stop_after_eos: bool = False  # stop after the block in which the text ends
    text_after_eos: bool = False  # also score the text after its first end, as published
    batch_size: Count = 64  # rollouts in one forward pass; affects memory only
    min_rows: Count = (
        1  # attempt ahead, up to so many rollouts in a forward pass; affects time only
    )
    prefill: str = ""  # text with which every answer begins, given to the model after the prompt
    max_prompt_tokens: Count | None = None  # keep only the last tokens of a prompt; null: never cut
    threshold: Share | None = None  # commit all tokens of this confidence at once, at least one

    def decisive(self, *ignored: str) -> dict[str, Any]:
        """Return the values by which results are identified; an older one has no threshold."""
        is_off = self.threshold is None and not isinstance(self, EvalProtocol)
        return super().decisive(*ignored, *(["threshold"] if is_off else []))

    @model_validator(mode="after")
    def blocks_and_steps_fit(self) -> Self:
        """Require whole blocks, and the same number of steps in each."""
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

    @model_validator(mode="after")
    def a_threshold_is_a_probability(self) -> Self:
        """Refuse a threshold together with an order that is no probability."""
        if self.order not in PROBABILITIES and self.threshold is not None:
            raise ValueError(
                f"threshold is a probability, which order {self.order} does not rank by; set order"
                " to probability or leave threshold out"
            )
        return self

    @model_validator(mode="after")
    def text_after_eos_is_sampled(self) -> Self:
        """Refuse text_after_eos together with stop_after_eos."""
        if self.text_after_eos and self.stop_after_eos:
            raise ValueError(
                "text_after_eos scores what stop_after_eos does not sample; set one to false"
            )
        return self


class ThresholdSampling(SamplingConfig):
    """Training rollouts that commit all tokens of a confidence at once, else the leftmost one."""

    fallback: Literal["leftmost"] = "leftmost"  # committed in steps without such a token


class EvalProtocol(SamplingConfig):
    """How an evaluation decodes.

    Published figures come from unmasked padding and float16 autocast; the defaults mask padding and
    use neither.
    """

    mask_padding: bool = True  # false: rows see the padding of their batch, as published
    autocast: Literal["none", "float16"] = "none"  # float16: as published
    merged: bool = False  # add adapters into the weights: faster, rounded in bfloat16
    cache: Literal["none", "prefix", "dual"] = "none"  # keys reused: before a block, or all others

    @property
    def approximations(self) -> list[str]:
        """Settings under which answers differ from those of the exact sampler, as text."""
        descriptions = (
            [] if self.threshold is None else [f"tokens of confidence {self.threshold} at once"]
        )
        return descriptions if self.cache == "none" else [*descriptions, f"{self.cache} cache"]


class CollectorConfig(Section):
    """pass@k: attempts per problem, their temperatures, and which attempt is kept."""

    attempts: Count = 8  # attempts per problem, k in pass@k
    first_temperature: Annotated[float, Field(ge=0)] = 0.9  # of the first attempt; 0: greedy
    retry_temperature: Annotated[float, Field(ge=0)] = 0.9  # of all later attempts
    keep_threshold: Share = 0.25  # graded tasks keep the best attempt if it scores this
    keep: Literal["correct", "all"] = "correct"  # all: also keep the best of failed attempts


def shared_block(model: Forward) -> int:
    """Return the tokens of a block that a prompt may share with its answer; 1: it shares none."""
    return model.block_size or 1 if model.block_alignment == "sequence" else 1


def blocks_misfit(size: int | None, gen_length: int, block_length: int) -> str | None:
    """Return why blocks of sampling do not fit a block-causal model; None if they do."""
    if size is None or (gen_length % size == 0 and size % block_length == 0):
        return None
    if gen_length % size:
        return f"gen_length {gen_length} is no multiple of {size}, this base's blocks of attention"
    return (
        f"block_length {block_length}: this base attends in blocks of {size}; set block_length to"
        " it, or to a part of it"
    )


@dataclass(frozen=True)
class Decoding:
    """How a completion is denoised: lengths in tokens, `steps` over the whole completion."""

    gen_length: int
    block_length: int
    steps: int
    temperature: float = 0.0
    gumbel_dtype: str = "float32"
    stop_after_eos: bool = False
    batch_size: int = 64
    min_rows: int = 1
    mask_padding: bool = True
    threshold: float | None = None  # for this and `cache` see fast_dllm.py
    cache: str = "none"
    fallback: str = "surest"  # token committed where none reaches the threshold: surest, leftmost
    order: str = "probability"  # what ranks the tokens of a block, see `certainty`
    top_p: float | None = None
    top_k: int = 0  # likeliest tokens that are kept of each committed one's distribution

    @property
    def num_transfer_tokens(self) -> list[int]:
        """Tokens committed at each step of a block; the remainder goes to the first steps.

        With a threshold: at least, in as many steps as a block can take.
        """
        if self.threshold is not None:
            return [1] * self.block_length
        steps = self.steps // (self.gen_length // self.block_length)
        return [self.block_length // steps + (i < self.block_length % steps) for i in range(steps)]
