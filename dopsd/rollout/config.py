"""Sections about decoding: lengths and steps of a rollout, and how evaluations decode."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dopsd.core.settings import Count, Section, Share

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
    prefill: str = ""  # text with which every answer begins, given to the model after the prompt
    max_prompt_tokens: Count | None = None  # keep only the last tokens of a prompt; null: never cut

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
        if self.order not in PROBABILITIES and vars(self).get("threshold") is not None:
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

    threshold: Share  # confidence of these tokens
    fallback: Literal["leftmost"] = "leftmost"  # committed in steps without such a token


class EvalProtocol(SamplingConfig):
    """How an evaluation decodes.

    Published figures come from unmasked padding and float16 autocast; the defaults mask padding and
    use neither.
    """

    mask_padding: bool = True  # false: rows see the padding of their batch, as published
    autocast: Literal["none", "float16"] = "none"  # float16: as published
    merged: bool = False  # add adapters into the weights: faster, rounded in bfloat16
    threshold: Share | None = None  # commit all tokens of this confidence at once, at least one
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
