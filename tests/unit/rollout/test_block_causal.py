"""Sampling under block-causal attention: an exact cache, growing length, blocks of the model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hub_toys import save_hub
from torch import Tensor

from dopsd.algorithms.d_opsd.config import DOpsdConfig
from dopsd.algorithms.d_opsd.states import BlockSchedule, states_by_update
from dopsd.core.errors import DopsdError
from dopsd.models.config import ModelConfig
from dopsd.models.llm_policy import LlmPolicy, load_policy
from dopsd.rollout.config import Decoding
from dopsd.rollout.fast_dllm import denoise_approximately
from dopsd.rollout.sampler import GenerationRequest, denoise

GREEDY = Decoding(gen_length=12, block_length=4, steps=6, batch_size=64)


@pytest.fixture(params=["sequence", "completion"])
def policy(tmp_path: Path, request: pytest.FixtureRequest) -> LlmPolicy:
    return block_policy("sdar", tmp_path, request.param)


def block_policy(name: str, folder: Path, alignment: str | None = None) -> LlmPolicy:
    """A toy with blocks of 4 tokens."""
    save_hub(folder, name)
    model = ModelConfig(path=str(folder), block_size=4, block_alignment=alignment)
    return load_policy(model, None, 0)


class WithoutCache:
    """GrowingHidden by whole forwards."""

    def __init__(self, model: LlmPolicy, start: int) -> None:
        self.model = model

    def of(self, ids: Tensor, attention_mask: Tensor | None, block: slice) -> Tensor:
        return self.model.hidden(ids, attention_mask)[:, block]

    def keep(self, before: Tensor, after: Tensor) -> None: ...


def requests(count: int) -> list[GenerationRequest]:
    """Prompts of 3 to 11 tokens, so that rows are padded."""
    draw = torch.Generator().manual_seed(5)
    lengths = torch.randint(3, 12, (count,), generator=draw).tolist()
    prompts = [torch.randint(2, 100, (length,), generator=draw) for length in lengths]
    return [GenerationRequest(str(i), 0, ids, 100 + i) for i, ids in enumerate(prompts)]


@pytest.mark.parametrize("block_length", [4, 2, 1])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("threshold", [None, 0.02])
def test_the_cache_changes_no_token(policy, threshold, temperature, block_length, monkeypatch):
    steps = 12 if block_length == 1 else 6
    how = Decoding(12, block_length, steps, temperature, stop_after_eos=True, threshold=threshold)
    sample = denoise if threshold is None else denoise_approximately
    cached = sample(policy, requests(64), how)
    monkeypatch.setattr(f"{sample.__module__}.GrowingHidden", WithoutCache)
    whole = sample(policy, requests(64), how)
    assert [r.to_dict() for r in cached] == [r.to_dict() for r in whole]
    ends = [(r.completion_ids == policy.eos_id).any() for r in cached]
    assert 0 < sum(ends) < 64 or temperature == 0.0


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
def test_blocks_that_do_not_fit_the_models_are_refused(policy, how: Decoding, expected: str):
    for run, decoding in ((denoise, how), (denoise_approximately, replace(how, threshold=0.9))):
        with pytest.raises(DopsdError, match=expected):
            run(policy, requests(1), decoding)


def published(policy: LlmPolicy, prompt: Tensor, how: Decoding) -> Tensor:
    """The sampler of SDAR's and LLaDA2's repositories, one row, greedy, without its cache.

    Blocks of the sequence are denoised one after the other, from the one in which the prompt ends;
    a step commits the surest `counts[step]` masks of the block, and the last block is filled whole.
    """
    size = policy.block_size
    blocks = -(-(len(prompt) + how.gen_length) // size)
    x = torch.full((blocks * size,), policy.mask_id)
    x[: len(prompt)] = prompt
    for block in range(len(prompt) // size, blocks):
        end = (block + 1) * size
        for count in how.num_transfer_tokens:
            masks = (x[end - size : end] == policy.mask_id).nonzero()[:, 0]
            if not len(masks):
                break
            logits = policy.head(policy.hidden(x[None, :end], None))[0, end - size :].float()
            logits[:, policy.suppress_tokens] = -torch.inf
            sure, tokens = logits.softmax(-1).max(-1)
            best = masks[sure[masks].sort(descending=True, stable=True).indices[:count]]
            x[end - size + best] = tokens[best]
    return x[len(prompt) : len(prompt) + how.gen_length]


@pytest.mark.parametrize("name", ["sdar", "llada2_moe"])
@pytest.mark.parametrize("steps", [3, 6, 12])
def test_prompts_that_end_inside_a_block_are_answered_as_by_the_published_sampler(
    name: str, steps: int, tmp_path: Path
):
    """By default, in a padded batch, by both samplers; counting from the completion differs."""
    policy, how = block_policy(name, tmp_path), Decoding(12, 4, steps)
    asked = requests(24)
    assert {len(request.prompt_ids) % 4 for request in asked} == {0, 1, 2, 3}
    with torch.no_grad():
        expected = [published(policy, request.prompt_ids, how).tolist() for request in asked]
    exact, fast = denoise(policy, asked, how), denoise_approximately(policy, asked, how)
    assert [r.completion_ids.tolist() for r in exact] == expected
    assert [r.to_dict() for r in fast] == [r.to_dict() for r in exact]
    policy.core.config.block_alignment = "completion"
    ours = [r.completion_ids.tolist() for r in denoise(policy, asked, how)]
    is_even = [len(request.prompt_ids) % 4 == 0 for request in asked]
    assert [a == b for a, b in zip(ours, expected, strict=True) if is_even] != [True] * 24


def test_states_of_a_trajectory_are_the_inputs_of_the_sampler(tmp_path: Path):
    """d-OPSD's states of a completion that begins inside a block, against what was sampled from."""
    policy, how = block_policy("sdar", tmp_path), Decoding(12, 4, 6)
    request = next(r for r in requests(24) if len(r.prompt_ids) % 4 == 3)
    seen: list[Tensor] = []
    hidden = policy.hidden

    def recorded(ids: Tensor, *more: object) -> Tensor:
        seen.append(ids)
        return hidden(ids, *more)

    policy.hidden = recorded  # type: ignore[method-assign]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("dopsd.rollout.sampler.GrowingHidden", WithoutCache)
        (rollout,) = denoise(policy, [request], how)
    blocks = BlockSchedule(4, (2, 2), policy.mask_id, policy.eos_id, shared=4)
    every = {"record": "all", "record_last_block": True, "drop_remainder": False}
    config = DOpsdConfig(**every, updates_per_trajectory=1, reveal_ratio=0.5)
    (states,) = states_by_update([rollout], config, blocks, (0, 0))
    # one token in the first block: its second step commits nothing
    assert states.step.tolist() == [0, 2, 3, 4, 5, 6, 7] and len(seen) == 8
    block = (torch.arange(12) + 3) // 4
    for n, step in enumerate(states.step.tolist()):
        length = len(request.prompt_ids) + 12
        assert states.student_ids[n].tolist() == seen[step][0, :length].tolist()
        assert set(block[states.candidates[n]].tolist()) == {step // 2}
        shown = (states.teacher_ids[n] != states.student_ids[n])[-12:]
        assert all(b > step // 2 for b in block[shown].tolist())
        assert shown.any() or step // 2 == 3
