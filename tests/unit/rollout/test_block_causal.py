"""Sampling under block-causal attention: an exact cache, growing length, blocks of the model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hub_toys import save_hub

from dopsd.core.errors import DopsdError
from dopsd.models.config import ModelConfig
from dopsd.models.llm_policy import LlmPolicy, load_policy
from dopsd.rollout.fast_dllm import denoise_approximately
from dopsd.rollout.sampler import Decoding, GenerationRequest, denoise

GREEDY = Decoding(gen_length=12, block_length=4, steps=6, batch_size=64)


@pytest.fixture
def policy(tmp_path: Path) -> LlmPolicy:
    return block_policy("sdar", tmp_path)


def block_policy(name: str, folder: Path) -> LlmPolicy:
    """A toy with blocks of 4 tokens."""
    save_hub(folder, name)
    return load_policy(ModelConfig(path=str(folder), block_size=4), None, 0)


def requests(count: int) -> list[GenerationRequest]:
    """Prompts of 3 to 11 tokens, so that rows are padded."""
    draw = torch.Generator().manual_seed(5)
    lengths = torch.randint(3, 12, (count,), generator=draw).tolist()
    prompts = [torch.randint(2, 100, (length,), generator=draw) for length in lengths]
    return [GenerationRequest(str(i), 0, ids, 100 + i) for i, ids in enumerate(prompts)]


@pytest.mark.parametrize("block_length", [4, 2, 1])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_the_cache_changes_no_token(
    policy: LlmPolicy, temperature: float, block_length: int, monkeypatch: pytest.MonkeyPatch
):
    steps = 12 if block_length == 1 else 6
    how = Decoding(12, block_length, steps, temperature, stop_after_eos=True)
    cached = denoise(policy, requests(64), how)
    monkeypatch.setattr(LlmPolicy, "block_size", None)  # whole forwards, without a cache
    whole = denoise(policy, requests(64), how)
    assert [r.to_dict() for r in cached] == [r.to_dict() for r in whole]
    ends = [(r.completion_ids == policy.eos_id).any() for r in cached]
    assert 0 < sum(ends) < 64 or temperature == 0.0


@pytest.mark.full
@pytest.mark.parametrize("name", ["sdar", "llada2_moe", "a2d-qwen3"])
def test_greedy_answers_to_1000_prompts_are_the_same_with_the_cache(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    policy, how = block_policy(name, tmp_path), Decoding(12, 4, 6, batch_size=50)
    asked = requests(1000)
    batches = [asked[first : first + 50] for first in range(0, 1000, 50)]
    cached = [r.to_dict() for batch in batches for r in denoise(policy, batch, how)]
    monkeypatch.setattr(LlmPolicy, "block_size", None)
    assert cached == [r.to_dict() for batch in batches for r in denoise(policy, batch, how)]


def test_a_row_does_not_depend_on_its_batch(policy: LlmPolicy):
    together = denoise(policy, requests(16), GREEDY)
    alone = [denoise(policy, [request], GREEDY)[0] for request in requests(16)]
    assert [r.to_dict() for r in together] == [r.to_dict() for r in alone]


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        (Decoding(12, 6, 6), "block_length 6: this base attends in blocks of 4"),
        (Decoding(16, 8, 8), "block_length 8: this base attends in blocks of 4"),
        (Decoding(10, 2, 5), "gen_length 10 is no multiple of 4"),
    ],
)
def test_blocks_that_do_not_fit_the_models_are_refused(
    policy: LlmPolicy, how: Decoding, expected: str
):
    for run, decoding in ((denoise, how), (denoise_approximately, replace(how, threshold=0.9))):
        with pytest.raises(DopsdError, match=expected):
            run(policy, requests(1), decoding)
