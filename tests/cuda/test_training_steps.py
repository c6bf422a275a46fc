"""Steps of training on a card: waits of the host, two ranks, 4-bit bases."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import forks
import pytest
import torch
from card import CPU, GRADIENT, Within, collect, distance, gradient_of, note, trainer
from small_settings import ROOT
from torch import nn

from dopsd.core.tensor_files import load_tensors, save_tensors
from dopsd.models.config import AdapterConfig, ModelConfig
from dopsd.models.graphs import BEFORE, CudaRecorder, GraphedTrunk
from dopsd.models.llm_policy import load_policy
from dopsd.rollout.config import Decoding
from dopsd.rollout.sampler import GenerationRequest, denoise
from dopsd.training.optim import sum_gradients

pytestmark = pytest.mark.cuda


def waits(work: Callable[[], object]) -> list[str]:
    """The lines at which the host waits for the card."""
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    waited = "called a synchronizing"  # the first call of the mode warns of itself
    return [f"{Path(w.filename).name}:{w.lineno}" for w in seen if waited in str(w.message)]


def test_the_host_waits_once_for_rollouts_and_once_more_than_passes_for_gradients(
    project, device, within: Within
):
    if device == CPU:
        pytest.skip("a CPU does not wait; test_device_reads.py counts reads without a card")
    loop = trainer("d_opsd", device)
    batches = collect(loop)
    denominator = loop._denominator(batches)
    requests = [GenerationRequest(str(n), 0, torch.arange(2, n), n) for n in (9, 12)]
    way = Decoding(16, 8, 8, 0.9)

    def rollouts() -> None:
        denoise(loop.policy, requests, way)

    def gradients() -> None:
        loop.micro_batches.gradients(loop.algorithm, loop.policy, batches, denominator)

    passes = [part for batch in batches for part in batch.split(loop.micro_batches.size)]
    for work, most in ((rollouts, 1), (gradients, len(passes) + 1)):
        work()  # what is allocated and loaded once may wait
        found = waits(work)
        note(work=work.__name__, lines=found)
        within(most, **{work.__name__: len(found)})


def test_a_recorded_update_has_the_gradients_of_a_launched_one(project, device, within: Within):
    if device == CPU:
        pytest.skip("a CPU records nothing; test_graphs.py replays traces")
    loop = trainer("d_opsd", device)
    batches = collect(loop)

    def gradient() -> torch.Tensor:
        loop.micro_batches.gradients(loop.algorithm, loop.policy, batches[:1] * 2, 1.0)
        return gradient_of(loop)

    launched = gradient()
    loop.policy.graphs = graphs = GraphedTrunk(loop.policy.core, CudaRecorder(device))
    found = [gradient() for _ in range(BEFORE + 3)]
    assert graphs.update is not None and not graphs.has_plain_updates
    within(GRADIENT, moved=max(distance(one, launched) for one in found))


def rank_gradient(out: Path, rank: int, size: int, place: torch.device) -> None:
    """Write the gradient of an update; ranks share its rows, and sum what they find."""
    loop = trainer("d_opsd", place)
    batches = [batch.rows(list(range(len(batch)))[rank::size]) for batch in collect(loop)]
    loop.micro_batches.gradients(loop.algorithm, loop.policy, batches, 1.0)
    if size > 1:
        backend, place_of = (
            "nccl" if place.type == "cuda" else "gloo",
            f"file://{out.resolve()}.ranks",
        )
        ranks = {"rank": rank, "world_size": size}
        torch.distributed.init_process_group(backend, init_method=place_of, **ranks)
        sum_gradients(p for p in loop.parameters.values() if p.grad is not None)
        torch.distributed.destroy_process_group()
    if rank == 0:
        save_tensors({"gradient": gradient_of(loop)}, out)


def test_two_ranks_sum_the_gradients_of_one(project, device, within: Within):
    if device != CPU and torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    places = [CPU if device == CPU else torch.device("cuda", rank) for rank in range(2)]
    ranks = [(Path("both"), rank, 2, places[rank]) for rank in range(2)]
    started = [
        forks.start(rank_gradient, *given, RANK=str(i))
        for i, given in enumerate([*ranks, (Path("alone"), 0, 1, places[0])])
    ]
    assert forks.statuses(started) == [0, 0, 0], [forks.output(i)[-1000:] for i in range(3)]
    both, alone = (load_tensors(Path(name))["gradient"] for name in ("both", "alone"))
    within(GRADIENT, gradient=distance(both, alone))


def nf4_rounded(weight: torch.Tensor) -> torch.Tensor:
    """A weight in NormalFloat of 4 bits, by blocks of 64 numbers (arXiv 2305.14314, appendix E)."""
    below = [-1.0, -0.6961928, -0.5250731, -0.3949175, -0.2844414, -0.1847734, -0.09105]
    above = [0.0795803, 0.1609302, 0.2461123, 0.3379152, 0.4407098, 0.562617, 0.7229568, 1.0]
    levels = torch.tensor([*below, 0.0, *above])
    blocks = weight.float().reshape(-1, 64)
    scale = blocks.abs().amax(1, keepdim=True)
    nearest = (blocks[:, :, None] / scale[:, :, None] - levels).abs().argmin(-1)
    return (levels[nearest] * scale).view_as(weight)


def test_a_base_in_4_bits_computes_with_rounded_weights(device, within: Within):
    if device == CPU or not find_spec("bitsandbytes"):
        pytest.skip("needs a GPU and bitsandbytes")
    lora = AdapterConfig(r=2, alpha=4, dropout=0.0, targets=["q_proj"])
    whole = ModelConfig(path=str(ROOT / "base/sudoku"), dtype="bfloat16")
    ids, found = torch.randint(6, 90, (2, 17), generator=torch.Generator().manual_seed(1)), []
    for kind in ("nf4", "literal", "whole"):
        model = whole.model_copy(update={"quantization": "nf4"}) if kind == "nf4" else whole
        policy = load_policy(model, lora, 0, device)
        if kind == "literal":
            for module in policy.core.blocks().modules():
                if isinstance(module, nn.Linear) and min(module.weight.shape) > lora.r:
                    module.weight.data = nf4_rounded(module.weight.cpu()).to(module.weight)
        logits = policy.head(policy.hidden(ids.to(device), None))
        logits.float().square().mean().backward()
        assert all(p.grad.isfinite().all() for p in policy.trainable().values())
        found.append(logits.detach().float().cpu())
    note(rounding=distance(found[0], found[2]))
    assert distance(found[1], found[2]) > 0.05
    within(0.03, logits=distance(found[0], found[1]))  # scales are rounded to 8 bits
