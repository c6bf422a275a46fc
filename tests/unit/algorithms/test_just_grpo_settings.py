"""JustGRPO's settings: what it changes in sections sampling and train, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from conftest import ROOT
from test_literal import moved

from dopsd.algorithms.just_grpo.config import JustGrpoConfig
from dopsd.algorithms.trace_rl.config import TraceRlConfig
from dopsd.config import profiles
from dopsd.config.loading import checked, load_params
from dopsd.core.errors import DopsdError
from dopsd.rollout import sampler
from dopsd.rollout.config import Decoding, SamplingConfig


@pytest.mark.parametrize(
    "config",
    [JustGrpoConfig(), JustGrpoConfig(positions="fallback", threshold=0.8), TraceRlConfig()],
)
def test_rollouts_follow_the_softmax_also_where_others_have_the_published_noise(config):
    """19 800 of 20 000 draws +- 14 are the first; with the published noise it was 19 943."""
    asked = SamplingConfig(gen_length=8, block_length=8, steps=8, gumbel_dtype="bfloat16")
    sampling = config.sampling_of(asked)
    decoding = Decoding(8, 1, 8, 1.0, sampling.gumbel_dtype)
    odds = torch.tensor([0.99] + [0.001] * 10)
    drawn = sampler.choose(odds.log().expand(20_000, 11), torch.arange(20_000), decoding)
    assert 19_740 < int((drawn == 0).sum()) < 19_860


def test_tokens_that_were_never_sampled_are_not_scored(project):
    """`stop_after_eos` fills the rest of a completion; steps below a threshold were sampled."""
    with pytest.raises(DopsdError, match="just_grpo: after_end scores tokens that"):
        moved("just_grpo", sampling__stop_after_eos=True, after_end=True)
    stopped = SamplingConfig(stop_after_eos=True)
    fine = {"after_end": False}, {"positions": "fallback", "threshold": 0.8}
    assert [JustGrpoConfig(**c).reason_against(stopped) for c in fine] == [None, None]
    assert JustGrpoConfig().reason_against(SamplingConfig()) is None


@pytest.mark.parametrize(("states", "at_once"), [(64, 8), (3, 3)])
def test_a_row_has_no_more_positions_than_fit_into_memory(project, states: int, at_once: int):
    assert moved("just_grpo", train__micro_batch_states=states).algorithm.at_once == at_once


def test_the_published_clip_of_the_gradient_is_the_default_and_embedded_runs_keep_theirs():
    published = checked(profiles.resolve("llada-8b-gsm8k", "reference"), "p")
    embedded = load_params(ROOT / "params.yaml")
    methods = "just_grpo", "trace_rl", "espo"
    found = [published.run("gsm8k", name, 0).train.grad_clip for name in methods]
    assert found == [1.0, 1.0, 0.2]
    assert [embedded.run("sudoku", name, 0).train.grad_clip for name in methods] == [0.2] * 3
