"""The sampler against hand-made logits: order, ties, schedule, noise, early stop, waves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fakes import EOS, MASK, FakePolicy
from hypothesis import given
from hypothesis import strategies as st

from dopsd.core.rng import bfloat16_uniform, fold_in, key_from, uniform, uniform_table
from dopsd.core.types import Problem
from dopsd.models.config import ModelConfig
from dopsd.models.llm_policy import LlmPolicy, load_policy
from dopsd.rollout.config import Decoding
from dopsd.rollout.engine import SamplingPlan, denoise_all, generate_until_correct
from dopsd.rollout.sampler import CPU_NOISE, GenerationRequest, certainty, choose, denoise, nucleus

PROMPT = torch.tensor([1, 2])


def trained(prepared: Path) -> LlmPolicy:
    """The base of the toy project."""
    return load_policy(ModelConfig(path=str(prepared / "base/sudoku")), None, 0)


def table(best: list[int], height: list[float]) -> torch.Tensor:
    rows = torch.zeros(len(best), 10)
    rows[torch.arange(len(best)), torch.tensor(best)] = torch.tensor(height)
    return rows


def sampled(policy: FakePolicy, how: Decoding, key: int = 0, hints: torch.Tensor | None = None):
    """The rollout of one prompt."""
    (rollout,) = denoise(policy, [GenerationRequest("p", 0, PROMPT, key, hints)], how)
    return rollout


@pytest.mark.parametrize(
    ("best", "height", "how", "expected"),
    [
        # the most confident positions of the block first
        ([1, 2, 3, 4], [1.0, 4.0, 3.0, 2.0], Decoding(4, 4, 2), [1, 0, 0, 1]),
        # blocks from left to right, whatever the confidence
        ([1, 2, 3, 4], [1.0, 2.0, 9.0, 9.0], Decoding(4, 2, 4), [1, 0, 2, 3]),
        # equal confidence goes to the lower position
        ([1, 1, 1, 1], [2.0] * 4, Decoding(4, 4, 4), [0, 1, 2, 3]),
    ],
)
def test_the_order_in_which_positions_are_committed(best, height, how, expected):
    rollout = sampled(FakePolicy(4, table=table(best, height)), how)
    assert rollout.completion_ids.tolist() == best and rollout.revealed_at.tolist() == expected


@pytest.mark.parametrize(
    ("order", "temperature", "expected"),
    [
        # position 0: 0.5, 0.5; position 1: 0.6, 0.2, 0.2; position 2: 0.55, 0.45
        ("probability", 0.0, [2, 0, 1]),
        ("margin", 0.0, [2, 0, 1]),  # 0, 0.4, 0.1
        ("entropy", 0.0, [1, 2, 0]),  # 0.693, 0.950, 0.688
        ("entropy", 0.1, [2, 0, 1]),  # nearly sure are 1, then 2: 0.693, 0.0002, 0.37
    ],
)
def test_tokens_are_committed_in_the_named_order(order: str, temperature: float, expected: list):
    shares = torch.tensor([[0.5, 0.5, 0.0], [0.6, 0.2, 0.2], [0.55, 0.45, 0.0]])
    how = Decoding(3, 3, 3, temperature, order=order)
    ranks = certainty(shares.log(), shares.argmax(-1), how).argsort(descending=True, stable=True)
    assert ranks.argsort().tolist() == expected
    rows = torch.zeros(3, 10).fill_(-100.0)
    rows[:, :3] = shares.log().clamp(min=-100.0)
    assert sampled(FakePolicy(3, table=rows), how).revealed_at.tolist() == expected


def test_tempered_probabilities_rank_as_sdars_and_llada2s_samplers_do():
    """At temperature 2: 0.5 of 0.5, 0.5; 0.464 of 0.6, 0.2, 0.2; 0.525 of 0.55, 0.45."""
    shares = torch.tensor([[0.5, 0.5, 0.0], [0.6, 0.2, 0.2], [0.55, 0.45, 0.0]])
    how = Decoding(3, 3, 3, 2.0, order="tempered_probability")
    found = certainty(shares.log(), shares.argmax(-1), how)
    assert found.tolist() == pytest.approx([0.5, 0.46410, 0.52506], abs=1e-5)
    greedy = certainty(shares.log(), shares.argmax(-1), replace(how, temperature=0.0))
    assert greedy.tolist() == pytest.approx([0.5, 0.6, 0.55])


def test_only_the_likeliest_tokens_that_hold_the_share_are_sampled():
    shares = torch.tensor([[0.2, 0.5, 0.3], [0.1, 0.3, 0.6]])
    kept = nucleus(shares.log(), 0.6, 0.0).isfinite()
    assert kept.tolist() == [[False, True, True], [False, False, True]]
    # at temperature 0.5 shares are squared: 0.04, 0.25, 0.09 of 0.38, so 0.66 for the first
    assert nucleus(shares.log(), 0.6, 0.5).isfinite()[0].tolist() == [False, True, False]
    drawn = set()
    how = Decoding(3, 3, 1, 1.0, top_p=0.6)
    rows = torch.full((3, 10), -1e4)
    rows[:, :3] = shares[0].log()
    for key in range(40):
        drawn |= set(sampled(FakePolicy(3, table=rows), how, key).completion_ids.tolist())
    assert drawn == {1, 2}


@pytest.mark.parametrize(
    ("block", "steps", "expected"), [(8, 4, [2, 2, 2, 2]), (8, 3, [3, 3, 2]), (5, 5, [1] * 5)]
)
def test_the_schedule_spreads_masks_with_the_remainder_first(block, steps, expected):
    assert Decoding(block, block, steps).num_transfer_tokens == expected


def test_the_mask_token_is_never_sampled_even_when_it_is_likeliest():
    rows = table([3, 3, 3, 3], [1.0] * 4)
    rows[:, MASK] = 50.0
    for temperature in (0.0, 1.0):
        rollout = sampled(FakePolicy(4, table=rows), Decoding(4, 4, 2, temperature), 5)
        assert MASK not in rollout.completion_ids.tolist()


def test_confidence_is_free_of_the_noise_that_chose_the_token():
    """The second position is surer, whatever token the noise proposes at the first."""
    for key in range(20):
        policy = FakePolicy(2, table=table([1, 2], [0.0, 5.0]))
        rollout = sampled(policy, Decoding(2, 2, 2, 0.3), key)
        assert rollout.revealed_at.tolist() == [1, 0]


def test_the_head_sees_only_masked_positions_of_the_current_block():
    policy = FakePolicy(8)
    sampled(policy, Decoding(8, 4, 4))
    assert policy.head_rows == (4 + 2) * 2  # not 4 steps x 10 positions


def test_the_table_of_noise_is_that_of_single_keys_and_no_part_of_it_matters():
    keys = fold_in(torch.arange(7), 11)
    assert torch.equal(uniform_table(keys, 40), uniform(fold_in(keys[:, None], torch.arange(40))))
    draw, size = torch.Generator().manual_seed(0), CPU_NOISE // 3  # three rows fill a part
    logits = torch.randn(7, size, generator=draw)
    noise = uniform(fold_in(keys[:, None], torch.arange(size)))
    whole = logits - 0.9 * (-noise.log()).log()
    assert torch.equal(choose(logits, keys, Decoding(1, 1, 1, 0.9)), whole.argmax(-1))


def test_gumbel_noise_at_temperature_one_samples_the_softmax():
    logits = torch.tensor([[0.0, 1.0, 2.0]]).expand(20000, -1)
    keys = fold_in(torch.arange(20000), 7)
    counts = torch.bincount(choose(logits, keys, Decoding(1, 1, 1, 1.0)), minlength=3) / 20000
    assert torch.allclose(counts, logits[0].softmax(-1), atol=0.015)


def test_bfloat16_noise_has_the_distribution_of_torch_rand():
    torch.manual_seed(0)
    size = 2**21
    ours = bfloat16_uniform(uniform(fold_in(torch.arange(size), 5))).float()
    theirs = torch.rand(size, dtype=torch.bfloat16).float()
    # a number in [0.5, 1) gets what float32 draws within 2**-9 of it; 1 becomes 0
    edges = torch.cat([2.0 ** torch.arange(-12, -1), torch.arange(0.5, 1.001, 2**-8)])
    nearest = edges - torch.where(edges <= 0.5, edges * 2**-9, 2**-9)
    shares = torch.cat([torch.tensor([nearest[0] + 2**-9]), nearest.diff()])
    draws = [ours]
    if (theirs % 2**-8).any():  # torch 2.11 draws multiples of 1/256 on a CPU, though not on a GPU
        draws.append(theirs)
    for drawn in draws:
        counts = torch.bincount(torch.bucketize(drawn, edges, right=True), minlength=len(edges))
        deviation = (counts - size * shares) / (size * shares).sqrt()
        assert deviation.abs().max() < 4.5  # of about 140 bins
        assert drawn.max() == 1 - 2**-8 and ((drawn > 0) & (drawn < 2**-9)).any()
        assert float((drawn == 0).double().mean()) * 512 == pytest.approx(1, abs=0.06)  # 4 sigma


def test_bfloat16_noise_has_its_own_odds_of_rare_tokens():
    logits = torch.tensor([[0.0, 8.0]]).expand(40000, -1)  # the first token's share is 0.03%
    keys = fold_in(torch.arange(40000), 3)
    # expected are 13.4; with bfloat16 u = 0 in one draw of 512 leaves the likely token no chance
    for dtype, least, most in (("float32", 3, 30), ("bfloat16", 55, 130)):
        rare = (choose(logits, keys, Decoding(1, 1, 1, 1.0, dtype)) == 0).sum()
        assert least < int(rare) < most


def test_a_rollout_does_not_depend_on_its_batch(prepared):
    policy, how = trained(prepared), Decoding(8, 4, 4, 0.9)
    requests = [
        GenerationRequest(str(i), 0, torch.arange(5, 9 + i), key_from("x", i)) for i in range(4)
    ]
    alone = [denoise(policy, [request], how)[0].to_dict() for request in requests]
    assert [rollout.to_dict() for rollout in denoise(policy, requests, how)] == alone


def test_stopping_after_the_end_of_text_is_exact_up_to_it_and_skips_the_rest():
    rows = table([1, EOS, 3, 4, 5, 6], [3.0] * 6)
    whole = sampled(FakePolicy(6, table=rows), Decoding(6, 2, 6))
    policy = FakePolicy(6, table=rows)
    stopped = sampled(policy, Decoding(6, 2, 6, stop_after_eos=True))
    assert whole.completion_ids.tolist() == [1, EOS, 3, 4, 5, 6]
    assert stopped.completion_ids.tolist() == [1, EOS] + [EOS] * 4
    assert len(policy.seen) == 2


def test_hints_are_seen_until_their_block_is_entered_and_then_cleared():
    policy = FakePolicy(4, table=table([1, 2, 3, 4], [2.0] * 4))
    hints = torch.tensor([MASK, 7, 7, MASK])
    rollout = sampled(policy, Decoding(4, 2, 4), hints=hints)
    assert policy.seen[0][0, 2:].tolist() == [MASK, MASK, 7, MASK]
    assert rollout.completion_ids.tolist() == [1, 2, 3, 4]


def run_attempts(
    correct_at: dict[str, int], is_stopping: bool, min_rows: int = 1, first: float = 0.9
) -> tuple[dict[str, int], list[int]]:
    policy = FakePolicy(2)
    problems = [(Problem(name, "1", "1"), PROMPT) for name in correct_at]
    plan = SamplingPlan(4, first, 0.9, is_stopping, Decoding(2, 2, 1, min_rows=min_rows))
    is_right = lambda p, r: r.attempt == correct_at[p.id]  # noqa: E731
    found = generate_until_correct(policy, problems, plan, is_right)
    return {name: len(tried) for name, tried in found.items()}, [len(ids) for ids in policy.seen]


@pytest.mark.parametrize(
    ("is_stopping", "min_rows", "used", "batches"),
    [
        (True, 1, (1, 3, 4), [3, 2, 2, 1]),  # each problem stops at its first correct attempt
        # two at each of three, then the last two at each of two; those ahead are dropped
        (True, 6, (1, 3, 4), [6, 4]),
        (False, 1, (4, 4, 4), [12]),  # a graded task samples every attempt in one wave
    ],
)
def test_waves_of_attempts(is_stopping: bool, min_rows: int, used: tuple, batches: list[int]):
    found, sizes = run_attempts({"a": 0, "b": 2, "c": 9}, is_stopping, min_rows)
    assert (*found.values(),) == used and sizes == batches


def test_first_attempts_at_a_temperature_of_their_own_are_one_wave():
    assert run_attempts({"a": 2}, is_stopping=True, min_rows=9, first=0.0) == ({"a": 3}, [1, 3])


def test_denoise_all_returns_the_order_of_the_draws_whatever_the_lengths():
    requests = [GenerationRequest(str(n), 0, torch.ones(n).long(), n) for n in (5, 2, 7, 3)]
    found = denoise_all(FakePolicy(2), requests, Decoding(2, 2, 1, batch_size=2))
    assert [rollout.problem_id for rollout in found] == ["5", "2", "7", "3"]


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 10**6))
def test_uniform_draws_stay_inside_the_open_interval_and_change_with_every_part(key, part):
    a = fold_in(torch.tensor(key), part)
    assert 0 < float(uniform(a)) < 1
    assert int(a) != int(fold_in(torch.tensor(key), part + 1))


def test_fold_agrees_with_splitmix64_written_in_plain_integers():
    def plain(key: int, part: int) -> int:
        size, golden = 1 << 64, 0x9E3779B97F4A7C15
        z = ((key ^ (part * golden % size)) + golden) % size
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % size
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % size
        return z ^ (z >> 31)

    assert int(fold_in(torch.tensor(42), 7)) % (1 << 64) == plain(42, 7)
    assert int(fold_in(torch.tensor(42), torch.tensor(7))) % (1 << 64) == plain(42, 7)


def test_a_batch_that_does_not_fit_is_sampled_in_halves_and_said_so(capsys):
    class Small(FakePolicy):
        def hidden(self, ids, attention_mask, kv_cache=None, cache_positions=None):
            if len(ids) > 2:
                raise torch.OutOfMemoryError("no room")
            return super().hidden(ids, attention_mask)

    requests = [GenerationRequest(str(n), 0, PROMPT, n) for n in range(6)]
    whole = denoise_all(FakePolicy(4), requests, Decoding(4, 4, 2, 0.9))
    small = Small(4)
    for _ in range(2):  # the second time it is known
        halved = denoise_all(small, requests, Decoding(4, 4, 2, 0.9, batch_size=4))
    assert [r.completion_ids.tolist() for r in halved] == [r.completion_ids.tolist() for r in whole]
    said = capsys.readouterr().err
    assert said.startswith("out of memory with 4 rollouts") and said.count("\n") == 1
    with pytest.raises(torch.OutOfMemoryError):  # half of six is still too many
        denoise_all(Small(4), requests, Decoding(4, 4, 2, 0.9, batch_size=6))
    # unmasked padding: other batches would be other results
    with pytest.raises(torch.OutOfMemoryError):
        denoise_all(Small(4), requests, Decoding(4, 4, 2, 0.9, batch_size=4, mask_padding=False))
