"""Rollouts of a block-causal base with the exact cache and without: equal tokens, then the time.

    python benchmarks/block_cache.py

First greedy rollouts of base/sudoku_blocks from random prompts are compared, token by token. Then
both are timed in turns: the embedded base, and random weights with a longer text.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
from pathlib import Path
from typing import Any

import torch
from shapes import random_prompts
from torch import Tensor
from versus import measured

from dopsd.models.config import ModelConfig
from dopsd.models.llm_policy import LlmPolicy, load_policy
from dopsd.models.loading import build_model
from dopsd.models.sdar.architecture import SdarConfig
from dopsd.models.text import build_tokenizer
from dopsd.rollout.config import Decoding
from dopsd.rollout.sampler import GenerationRequest, denoise

BASE = "base/sudoku_blocks"
COMPARED, ROWS, FEW = 1000, 16, 4  # prompts: compared, timed, timed with a long text
EMBEDDED = Decoding(gen_length=40, block_length=8, steps=20)
LONG = Decoding(gen_length=128, block_length=32, steps=32)
PROMPT = 100  # tokens of a prompt of the long shape


class WithoutCache:
    """A block-causal policy that does not say so: the sampler then makes whole forwards."""

    block_size = None

    def __init__(self, policy: LlmPolicy) -> None:
        self.policy = policy

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)


def requests(prompts: list[Tensor]) -> list[GenerationRequest]:
    return [GenerationRequest(str(i), 0, ids, i) for i, ids in enumerate(prompts)]


def same(policy: LlmPolicy, count: int) -> int:
    """Check that greedy rollouts are equal with and without the cache; return how many.

    Raises:
        AssertionError: if a token, or the step that committed it, differs.
    """
    prompts = random_prompts(count, 20, 10, len(build_tokenizer()))
    for start in range(0, count, 50):
        batch = requests(prompts[start : start + 50])
        both = [
            [rollout.to_dict() for rollout in denoise(model, batch, EMBEDDED)]
            for model in (policy, WithoutCache(policy))  # type: ignore[list-item]
        ]
        if both[0] != both[1]:
            raise AssertionError(f"rollouts {start} to {start + 49} differ")
    return count


def long_policy() -> LlmPolicy:
    """Return random weights of 4 million parameters, with blocks of 32."""
    tokenizer = build_tokenizer()
    shape = {"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2}
    shape |= {"head_dim": 64, "num_hidden_layers": 4, "intermediate_size": 768}
    ids = {"mask_token_id": tokenizer.mask_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = SdarConfig(
        **shape, **ids, vocab_size=len(tokenizer), tie_word_embeddings=False, block_size=32
    )
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        return LlmPolicy(build_model(config).eval(), tokenizer, None, 0)


def timed(policy: LlmPolicy, prompts: list[Tensor], how: Decoding, repeats: int) -> dict[str, Any]:
    """Time both in turns, after a warm-up of each."""
    sides = [policy, WithoutCache(policy)]
    batch = requests(prompts)

    def seconds(side: Any) -> float:
        return measured(policy.device, lambda: denoise(side, batch, how)).seconds

    for side in sides:
        seconds(side)
    rounds = [[seconds(side) for side in sides] for _ in range(repeats)]
    cached, whole = (statistics.median(column) for column in zip(*rounds, strict=True))
    ratios = sorted(b / a for a, b in rounds)
    return {
        "rows": len(prompts),
        "cached_seconds": cached,
        "whole_seconds": whole,
        "ratio": statistics.median(ratios),
        "ratio_low": ratios[0],
        "ratio_high": ratios[-1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, help="write the JSON here as well")
    a = parser.parse_args()
    embedded = load_policy(ModelConfig(path=BASE), None, 0)
    short_prompts = random_prompts(ROWS, 20, 10, len(build_tokenizer()))
    long_prompts = random_prompts(FEW, PROMPT, 10, len(build_tokenizer()))
    results: dict[str, dict[str, Any]] = {
        "embedded": {
            "checked": {"same_rollouts": same(embedded, COMPARED)},
            "timed": timed(embedded, short_prompts, EMBEDDED, a.repeats),
        },
        "long": {"timed": timed(long_policy(), long_prompts, LONG, a.repeats)},
    }
    threads = f"CPU, {torch.get_num_threads()} threads"
    results["machine"] = {"device": threads, "torch": torch.__version__}
    results["machine"]["python"] = platform.python_version()
    text = json.dumps(results, indent=1)
    print(text)
    if a.out:
        a.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
