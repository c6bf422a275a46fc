"""The sampler: a card chooses the CPU's tokens, with the right probabilities.

Rounding may turn a choice between two tokens that are nearly equal, and all later choices follow
it. So a row counts if the CPU repeats it with hidden states that are moved by MOVED, which is the
bound of logits in test_same_logits.py and ten times what rounding does. A wrong mask, position or
random number changes every row.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from card import CPU, LOGITS, Within
from fakes import FakePolicy
from small_settings import ROOT

from dopsd.config import profiles
from dopsd.config.params import Params
from dopsd.core.rng import bfloat16_uniform, fold_in, uniform, uniform_table
from dopsd.core.types import Rollout
from dopsd.models.graphs import CudaRecorder, GraphedTrunk
from dopsd.models.llm_policy import LlmPolicy, load_policy
from dopsd.rollout.config import Decoding
from dopsd.rollout.engine import sampler_of
from dopsd.rollout.prompts import decoding
from dopsd.rollout.sampler import GenerationRequest, choose

pytestmark = pytest.mark.cuda
LENGTHS = (1, 10, 11, 13, 15, 16, 17, 24)  # tokens of a prompt
MOVED, REPEATS, ENOUGH = LOGITS, 2, 0.75
PARAMS = Params.model_validate(profiles.resolve(profiles.EMBEDDED))
NOISY = decoding(PARAMS.sampling, 0.9)
WAYS = {
    "greedy": (replace(NOISY, temperature=0.0), "sudoku"),
    "noise": (NOISY, "sudoku"),
    "nucleus_by_margin": (replace(NOISY, top_p=0.9, order="margin"), "sudoku"),
    "prefix_cache": (replace(NOISY, cache="prefix"), "sudoku"),
    "dual_cache_and_threshold": (replace(NOISY, cache="dual", threshold=0.9), "sudoku"),
    "blocks": (NOISY, "sudoku_blocks"),
}


def embedded(base: str, device: torch.device) -> LlmPolicy:
    model = PARAMS.model_of("sudoku").model_copy(update={"path": str(ROOT / "base" / base)})
    return load_policy(model, None, 0, device)


def sampled(policy: LlmPolicy, way: Decoding, at_once: int = len(LENGTHS)) -> list[Rollout]:
    draw = torch.Generator().manual_seed(2)
    prompts = [torch.randint(6, 90, (length,), generator=draw) for length in LENGTHS]
    rows = [GenerationRequest(f"p{i}", 0, prompt, i) for i, prompt in enumerate(prompts)]
    parts = [rows[i : i + at_once] for i in range(0, len(rows), at_once)]
    return [rollout for part in parts for rollout in sampler_of(way)(policy, part, way)]


def differ(ours: list[Rollout], theirs: list[Rollout]) -> list[bool]:
    """Which rows differ in a token or in the step that committed it."""
    pairs = list(zip(ours, theirs, strict=True))
    tokens = [torch.equal(a.completion_ids, b.completion_ids) for a, b in pairs]
    steps = [torch.equal(a.revealed_at, b.revealed_at) for a, b in pairs]
    return [not (a and b) for a, b in zip(tokens, steps, strict=True)]


def unstable(policy: LlmPolicy, way: Decoding, exact: list[Rollout]) -> list[bool]:
    """Which rows the policy itself does not repeat with hidden states that are moved a little."""
    hidden, found = policy.hidden, [False] * len(exact)
    for seed in range(REPEATS):
        draw = torch.Generator().manual_seed(seed)

        def moved(*given: object, draw: torch.Generator = draw) -> torch.Tensor:
            states = hidden(*given)
            return states * (1 + MOVED * torch.randn(states.shape, generator=draw))

        policy.hidden = moved
        found = [a or b for a, b in zip(found, differ(sampled(policy, way), exact), strict=True)]
    policy.hidden = hidden
    return found


@pytest.mark.parametrize("name", WAYS)
def test_rows_are_those_of_the_cpu_alone_and_in_a_batch(name: str, device, within: Within):
    way, base = WAYS[name]
    here, there = embedded(base, CPU), embedded(base, device)
    exact = sampled(here, way)
    loose = unstable(here, way, exact)
    assert loose.count(False) >= ENOUGH * len(loose)
    found = {"batch": sampled(there, way)}
    if way.threshold is None:  # else the rows of a batch share the number of a step
        found["alone"] = sampled(there, way, 1)
    wrong = {
        what: sum(a > b for a, b in zip(differ(rows, exact), loose, strict=True))
        for what, rows in found.items()
    }
    within(0, **wrong)


@pytest.mark.parametrize("name", ["greedy", "noise"])
def test_recorded_forwards_give_the_tokens_of_launched_ones(name: str, device, within: Within):
    if device == CPU:
        pytest.skip("a CPU records nothing; test_graphs.py replays traces")
    way, base = WAYS[name]
    policy = embedded(base, device)
    launched = sampled(policy, way)
    policy.graphs = GraphedTrunk(policy.core, CudaRecorder(device))
    found = [sampled(policy, way) for _ in range(2)]
    assert policy.graphs.recordings and not policy.graphs.is_off
    within(0, changed=sum(sum(differ(rows, launched)) for rows in found))


def test_keyed_noise_has_the_bits_of_the_cpu(device, within: Within):
    keys = fold_in(torch.arange(1000), 7)
    here, there = uniform_table(keys, 300), uniform_table(keys.to(device), 300)
    within(0, share=(there.cpu() != here).double().mean().item())


class TablePolicy(FakePolicy):
    """The same logits for one token of every row, on a device."""

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__(1, len(logits), logits[None])
        self.device = logits.device

    def hidden(self, ids: torch.Tensor, *_: object) -> torch.Tensor:
        return torch.ones(*ids.shape, 1, device=self.device)


def test_sampled_tokens_have_the_probabilities_of_the_softmax(device, within: Within):
    """The statistic of 8 free counts exceeds 43 in one of a million right samplers."""
    temperature, rows = 0.9, 2**14
    logits = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, -0.5, -1.0, 0.2, 0.7, 9.0])  # 9: the mask
    requests = [GenerationRequest(str(i), 0, torch.tensor([1]), i) for i in range(rows)]
    way = Decoding(1, 1, 1, temperature)
    found = sampler_of(way)(TablePolicy(logits.to(device)), requests, way)
    counts = torch.bincount(torch.cat([r.completion_ids for r in found]), minlength=10).double()
    expected = rows * (logits[:9].double() / temperature).softmax(-1)
    assert counts[9] == 0
    within(43, chi_square=((counts[:9] - expected) ** 2 / expected).sum().item())


def test_noise_in_bfloat16_is_distributed_as_torchs_own(device, within: Within):
    """Counts of two samples differ by 4.5 standard deviations in one of 1000 such comparisons."""
    n, edges = 2**21, torch.cat([2.0 ** torch.arange(-12, 0), torch.arange(0.504, 1, 0.004)])
    ours = bfloat16_uniform(uniform(fold_in(torch.arange(n, device=device), 5)))
    if device == CPU:  # some versions of torch round otherwise on a CPU
        rounded = torch.rand(n, generator=torch.Generator().manual_seed(0)).bfloat16()
        theirs = rounded.masked_fill(rounded == 1, 0)
    else:
        drawn = torch.Generator(device).manual_seed(0)
        theirs = torch.rand(n, dtype=torch.bfloat16, device=device, generator=drawn)

    def counts(draws: torch.Tensor) -> torch.Tensor:
        places = torch.bucketize(draws.float().cpu(), edges, right=True)
        zeros = (draws == 0).sum().cpu()[None]
        return torch.cat([zeros, torch.bincount(places, minlength=len(edges) + 1)])

    a, b = counts(ours), counts(theirs)
    within(4.5, deviations=((a - b) / (a + b + 1).sqrt()).abs().max().item())
    within(0, largest=abs(ours.max().item() - theirs.max().item()))


def test_choices_in_bfloat16_are_those_of_the_cpu(device, within: Within):
    """Powers and logarithms of another library round some numbers to a neighbour."""
    logits = 3 * torch.randn(4096, 112, generator=torch.Generator().manual_seed(0))
    keys, way = torch.arange(4096), replace(NOISY, gumbel_dtype="bfloat16")
    here, there = (choose(logits.to(d), keys.to(d), way).cpu() for d in (CPU, device))
    within(0.01, share=(here != there).double().mean().item())
