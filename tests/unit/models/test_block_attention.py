"""Block-causal attention of every class that has it: a masked copy, a growing cache, a teacher."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hub_toys import save_hub
from torch import Tensor

from dopsd.core.errors import DopsdError
from dopsd.models.config import ModelConfig
from dopsd.models.llm_policy import LlmPolicy, load_policy
from dopsd.models.registry import config_of
from dopsd.models.sdar.architecture import SdarConfig

SIZE = 4  # tokens of a block


@pytest.fixture(params=["sdar", "llada2_moe", "a2d-qwen3"])
def policy(request: pytest.FixtureRequest, tmp_path: Path) -> LlmPolicy:
    save_hub(tmp_path, request.param)
    return aligned(tmp_path, "completion")


def aligned(folder: Path, where: str) -> LlmPolicy:
    model = ModelConfig(path=str(folder), block_size=SIZE, block_alignment=where)
    return load_policy(model, None, 0)


def texts(length: int, padding: int) -> tuple[Tensor, Tensor]:
    """Two texts, of which the first begins with padding."""
    ids = torch.randint(2, 100, (2, length), generator=torch.Generator().manual_seed(1))
    keep = torch.ones(2, length, dtype=torch.bool)
    keep[0, :padding] = False
    return ids, keep


def masked_texts(policy: LlmPolicy, prompt: int, padding: int) -> tuple[Tensor, Tensor, Tensor]:
    """Texts of three blocks behind a prompt, and the same with many masks."""
    ids, keep = texts(prompt + 3 * SIZE, padding)
    masked = ids.clone()
    hidden = torch.rand(2, 3 * SIZE, generator=torch.Generator().manual_seed(2)) < 0.6
    masked[:, prompt:][hidden] = policy.mask_id
    return ids, keep, masked


@pytest.mark.parametrize(("prompt", "padding"), [(5, 3), (1, 0), (6, 0)])
def test_all_blocks_of_a_masked_copy_are_scored_in_one_forward_as_one_by_one(
    policy: LlmPolicy, prompt: int, padding: int
):
    ids, keep, masked = masked_texts(policy, prompt, padding)
    with torch.no_grad():
        together = policy.masked_hidden(masked, keep, ids[:, prompt:])
        alone = []
        for block in range(3):
            end = prompt + (block + 1) * SIZE
            known = torch.cat([ids[:, : end - SIZE], masked[:, end - SIZE : end]], 1)
            alone.append(policy.hidden(known, keep[:, :end])[:, -SIZE:])
        plain = policy.hidden(masked, keep)[:, prompt:]
    assert (plain[:, SIZE:] - torch.cat(alone, 1)[:, SIZE:]).abs().max() > 0.1
    assert (together - torch.cat(alone, 1)).abs().max() <= 1e-5


@pytest.mark.parametrize("name", ["sdar", "llada2_moe"])
@pytest.mark.parametrize(("prompt", "padding"), [(7, 3), (6, 0), (5, 1), (4, 0), (1, 0)])
def test_a_masked_copy_that_begins_inside_a_block_sees_it_as_the_sampler_does(
    name: str, prompt: int, padding: int, tmp_path: Path
):
    """Each row alone, without padding, one block after the other; blocks count from its start."""
    save_hub(tmp_path, name)
    policy = aligned(tmp_path, "sequence")
    ids, keep, masked = masked_texts(policy, prompt, padding)
    with torch.no_grad():
        together = policy.masked_hidden(masked, keep, ids[:, prompt:])
        for row, first in enumerate((padding, 0)):
            alone = []
            for begin in range((prompt - first) // SIZE * SIZE, ids.shape[1] - first, SIZE):
                known = ids[row : row + 1, first:].clone()
                known[:, begin:] = masked[row, first + begin :]
                seen = policy.hidden(known[:, : begin + SIZE], None)
                alone.append(seen[:, max(begin, prompt - first) :])
            assert (together[row] - torch.cat(alone, 1)[0]).abs().max() <= 1e-5


def test_windows_of_a_growing_cache_are_those_of_the_whole_forward(policy: LlmPolicy):
    ids, keep = texts(17, 3)
    kv_cache = policy.new_kv_cache()
    with torch.no_grad():
        whole = policy.hidden(ids, keep)
        first = policy.hidden(ids[:, :9], keep, kv_cache, slice(0, 9))
        noisy = policy.hidden(ids[:, 9:13] * 0 + 1, keep, kv_cache, slice(9, 13))
        both = policy.hidden(ids[:, 9:17], keep, kv_cache, slice(9, 17))
        kv_cache.keep(torch.tensor([1]))
        last = policy.hidden(ids[1:, 13:17], keep[1:], kv_cache, slice(13, 17))
    assert (noisy - whole[:, 9:13]).abs().max() > 0.1
    assert (torch.cat([first, both], 1) - whole)[keep].abs().max() <= 1e-5
    assert (last - whole[1:, 13:]).abs().max() <= 1e-5


def test_a_teacher_that_sees_all_sees_later_blocks_and_the_student_does_not(policy: LlmPolicy):
    ids, _ = texts(16, 0)
    other = ids.clone()
    other[:, -SIZE:] = 7
    for attention in ("base", "all"):
        policy.use_teacher("base", 0.0, attention=attention)
        with torch.no_grad():
            with policy.teacher():
                moved = policy.hidden(ids, None) - policy.hidden(other, None)
            assert policy.block_size == SIZE
            still = policy.hidden(ids, None) - policy.hidden(other, None)
        assert still[:, :-SIZE].abs().max() <= 1e-5
        assert bool(moved[:, :-SIZE].abs().max() > 0.01) == (attention == "all")


def test_blocks_with_shifted_outputs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    save_hub(tmp_path, "sdar")
    monkeypatch.setattr(SdarConfig, "output_shift", 1)
    with pytest.raises(DopsdError, match="blocks of attention with shifted outputs"):
        config_of(ModelConfig(path=str(tmp_path)))
