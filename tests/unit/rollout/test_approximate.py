"""Approximate decoding by a threshold and with a kept cache, exact where it must be."""

from __future__ import annotations

import pytest
import torch
from conftest import write_params
from fakes import EOS, FakePolicy
from test_sampling import trained
from toy_runs import evaluator
from toys import toy

from dopsd.cli.main import main
from dopsd.config.loading import load_params
from dopsd.config.params import Params
from dopsd.core.types import Rollout
from dopsd.models.kv_cache import KVCache
from dopsd.rollout.config import Decoding, EvalProtocol, SamplingConfig
from dopsd.rollout.fast_dllm import denoise_approximately
from dopsd.rollout.sampler import GenerationRequest, denoise

PROMPT = torch.tensor([1, 2])
ASKED = [GenerationRequest("p", 0, PROMPT, 0)]
SURE = 9.0  # a logit among nine zeros: confidence 0.999


def table(height: list[float]) -> torch.Tensor:
    rows = torch.zeros(len(height), 10)
    rows[torch.arange(len(height)), torch.arange(len(height)) % 7] = torch.tensor(height)
    return rows


def asked(count: int) -> list[GenerationRequest]:
    return [GenerationRequest(str(i), 0, torch.arange(5, 9 + i), i) for i in range(count)]


def states(rollouts: list[Rollout]) -> list[tuple[list[int], list[int]]]:
    """Tokens and the steps that committed them."""
    return [(r.completion_ids.tolist(), r.revealed_at.tolist()) for r in rollouts]


def test_tokens_above_the_threshold_are_committed_at_once_and_else_the_surest_one():
    policy = FakePolicy(4, table=table([SURE, 1.0, SURE, 2.0]))
    (found,) = denoise_approximately(policy, ASKED, Decoding(4, 4, 4, threshold=0.9))
    assert found.completion_ids.tolist() == [0, 1, 2, 3]
    assert found.revealed_at.tolist() == [0, 2, 0, 1]
    assert len(policy.seen) == 3


def test_where_no_token_reaches_the_threshold_the_leftmost_is_committed_and_marked():
    """Steps 0 and 3 commit the sure token of their block; at all others none is sure."""
    policy = FakePolicy(6, table=table([1.0, SURE, 2.0, 1.0, 2.0, SURE]))
    decoding = Decoding(6, 3, 6, threshold=0.9, fallback="leftmost")
    (found,) = denoise_approximately(policy, ASKED, decoding)
    assert found.revealed_at.tolist() == [1, 0, 2, 4, 5, 3]
    assert found.is_fallback.int().tolist() == [1, 0, 1, 1, 1, 0]
    assert Rollout.from_dict(found.to_dict()).is_fallback.tolist() == found.is_fallback.tolist()


def test_rows_that_have_a_whole_block_wait_for_the_others_without_being_computed():
    policy = FakePolicy(4, table=table([SURE, SURE, 1.0, 2.0]))
    denoise_approximately(policy, 2 * ASKED, Decoding(4, 2, 4, threshold=0.9))
    # one step for the first block, two for the second
    assert [len(ids) for ids in policy.seen] == [2, 2, 2]


def test_a_threshold_that_nothing_reaches_commits_one_token_a_step_as_the_exact_sampler_does(
    prepared,
):
    policy, requests = trained(prepared), asked(3)
    exact = denoise(policy, requests, Decoding(8, 4, 8))
    found = denoise_approximately(policy, requests, Decoding(8, 4, 8, threshold=1.0))
    assert states(found) == states(exact)


@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_with_a_step_a_block_a_cache_is_exact(prepared, cache: str):
    policy, requests = trained(prepared), asked(3)
    exact = denoise(policy, requests, Decoding(8, 4, 2))
    found = denoise_approximately(policy, requests, Decoding(8, 4, 2, cache=cache))
    assert states(found) == states(exact)


@pytest.mark.parametrize(
    ("cache", "columns"), [("prefix", [19, 8, 19, 4]), ("dual", [19, 4, 19, 4])]
)
def test_a_cache_computes_less_and_what_it_gives_does_not_depend_on_the_batch(
    prepared, cache: str, columns: list[int]
):
    policy, seen = trained(prepared), []
    policy.core.model.register_forward_hook(lambda _, given, __: seen.append(given[0].shape[1]))
    requests, how = asked(8), Decoding(8, 4, 4, cache=cache)  # 4 to 11 tokens
    together = denoise_approximately(policy, requests, how)
    assert seen == columns
    alone = [denoise_approximately(policy, [request], how)[0] for request in requests]
    assert [ids for ids, _ in states(alone)] == [ids for ids, _ in states(together)]


def test_a_window_among_kept_keys_is_exact_while_the_rest_stands_still():
    model = toy(kv_heads=2)
    ids = torch.randint(2, 100, (2, 12), generator=torch.Generator().manual_seed(0))
    mask = torch.ones(2, 12, dtype=torch.bool)
    mask[1, :3] = False
    kv_cache, cache_positions = KVCache(2), slice(4, 8)
    with torch.no_grad():
        whole = model.model(ids, mask, kv_cache)
        assert torch.allclose(whole, model.model(ids, mask))
        window = model.model(ids[:, cache_positions], mask, kv_cache, cache_positions)
        assert torch.allclose(window, whole[:, cache_positions], atol=1e-5)
        changed = ids.clone()
        changed[:, 5] = 77
        exact = model.model(changed, mask)[:, cache_positions]
        near = model.model(changed[:, cache_positions], mask, kv_cache, cache_positions)
    # outside the window keys are those of the old token
    assert not torch.allclose(near, exact, atol=1e-3)
    assert (near - exact).norm() < (whole[:, cache_positions] - exact).norm()


def test_an_ended_text_is_filled_up_and_its_row_left_out():
    rows = table([SURE] * 6)
    rows[1] = 0
    rows[1, EOS] = SURE
    policy = FakePolicy(6, table=rows)
    decoding = Decoding(6, 2, 6, stop_after_eos=True, threshold=0.9)
    (found,) = denoise_approximately(policy, ASKED, decoding)
    assert found.completion_ids.tolist() == [0, EOS] + [EOS] * 4
    assert len(policy.seen) == 1


def test_what_is_approximate_is_named_and_selects_nothing(project):
    assert len(EvalProtocol(threshold=0.9, cache="dual").approximations) == 2
    raw = load_params().model_dump()
    raw["evaluate"]["protocols"]["greedy"]["threshold"] = 0.9
    with pytest.raises(ValueError, match=r"select\.protocol 'greedy' is approximate"):
        Params.model_validate(raw)
    raw["evaluate"]["protocols"]["greedy"] |= {"threshold": None, "cache": "dual"}
    raw["evaluate"]["protocols"] = {"exact": {}, "fast": raw["evaluate"]["protocols"]["greedy"]}
    raw["select"]["protocol"] = "exact"
    for key, value in (("attention", "auto"), ("compile", True)):
        raw["model"] |= {"attention": "sdpa", "compile": False, key: value}
        with pytest.raises(ValueError, match=r"protocols\.fast\.cache needs model\.attention sdpa"):
            Params.model_validate(raw)


def test_with_a_threshold_and_noise_a_row_does_not_depend_on_its_batch():
    """Rows that finish a block sooner than others draw the next block's noise as they do alone."""
    policy = FakePolicy(8, table=table([2.0, SURE, 3.0, 1.0, 2.0, SURE, 1.0, 3.0]))
    how = Decoding(8, 4, 8, 0.9, threshold=0.7)
    requests = [GenerationRequest(str(i), 0, PROMPT, i) for i in range(12)]
    together = denoise_approximately(policy, requests, how)
    alone = [denoise_approximately(policy, [one], how)[0] for one in requests]
    assert len({int(r.revealed_at.max()) for r in alone}) > 1
    assert states(together) == states(alone)


def test_methods_that_sample_in_steps_of_their_own_refuse_a_threshold(project, capsys):
    for method in ("d3llm", "just_grpo"):
        write_params(matrix__methods=[method], sampling__threshold=0.9)
        assert main(["check"]) == 2
        line = f"method.{method}: samples in steps of its own; set sampling.threshold to null"
        assert line in capsys.readouterr().err
    write_params(matrix__methods=["wd1"], sampling__threshold=0.9)
    assert main(["check"]) == 0


def test_runs_and_scores_from_before_the_key_keep_their_names():
    assert "threshold" not in SamplingConfig().decisive()
    assert SamplingConfig(threshold=0.0).decisive()["threshold"] == 0.0
    assert EvalProtocol().decisive()["threshold"] is None


def test_steps_of_an_evaluation_may_be_more_than_those_of_its_protocol(finished):
    scorer, protocol = evaluator()
    slow = protocol.model_copy(update={"threshold": 1.0})
    ((report,),) = scorer.reports("evaluate", [None], slow)
    assert report["steps"] > protocol.steps == 20
