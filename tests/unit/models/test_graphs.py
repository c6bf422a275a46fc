"""Recorded forwards on a CPU, where a traced computation stands for a CUDA graph.

Like a graph it has the addresses and the branches of the time when it was recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import chain

import pytest
import torch
from hub_toys import save_hub
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from toys import save_toy

from dopsd.core.errors import DopsdError
from dopsd.core.fingerprint import key_from
from dopsd.models import graphs, loading
from dopsd.models.config import AdapterConfig, ModelConfig
from dopsd.models.graphs import Compute, GraphedTrunk
from dopsd.models.llm_policy import LlmPolicy, load_policy
from dopsd.rollout.config import Decoding
from dopsd.rollout.sampler import GenerationRequest, denoise

LORA = AdapterConfig(r=2, alpha=4, dropout=0.0, targets=["q_proj", "up_proj"])
HOW = Decoding(16, 8, 8, temperature=1.0, stop_after_eos=True)


class Traces:
    """Records by tracing; counts recordings and replays."""

    def __init__(self) -> None:
        self.recorded, self.replayed = 0, 0

    def record(self, compute: Compute, ids: Tensor, mask: Tensor | None) -> Callable[[], Tensor]:
        given = (ids,) if mask is None else (ids, mask)
        traced = make_fx(lambda *x: compute(x[0], x[1] if len(x) > 1 else None))(*given)
        for name, constant in [*vars(traced).items(), *traced._parameters.items()]:
            if isinstance(constant, Tensor):  # an address, not a name
                traced._parameters.pop(name, None)
                setattr(traced, name, constant.detach())
        for name, constant in [*traced._buffers.items()]:
            traced._buffers[name] = constant.detach()
        self.recorded += 1

        def replay() -> Tensor:
            self.replayed += 1
            return traced(*given)

        return replay

    def record_pass(self, trunk: nn.Module, given: tuple[Tensor, ...]) -> Callable[..., Tensor]:
        held = [x.clone() for x in given]
        self.recorded += 1

        def replay(*now: Tensor) -> Tensor:
            self.replayed += 1
            for place, x in zip(held, now, strict=True):
                place.copy_(x)
            return trunk(*held)

        return replay


@pytest.fixture(params=["llada", "a2d-llama", "sdar"])
def policy(request, tmp_path) -> LlmPolicy:
    save_toy(tmp_path) if request.param == "llada" else save_hub(tmp_path, request.param)
    made = load_policy(ModelConfig(path=str(tmp_path)), LORA, 0)
    for i, p in enumerate(made.trainable().values()):
        nn.init.normal_(p, std=0.3, generator=torch.Generator().manual_seed(i))
    return made


def asked(count: int, lengths: tuple[int, ...] = (5, 9)) -> list[GenerationRequest]:
    texts = [torch.arange(2, 2 + lengths[i % len(lengths)]) for i in range(count)]
    return [GenerationRequest(str(i), 0, ids, key_from(i)) for i, ids in enumerate(texts)]


def test_rollouts_are_those_of_forwards_launched_one_by_one(policy: LlmPolicy):
    batches = [asked(4), asked(3), asked(4, (7,)), asked(1), asked(4)]
    how = replace(HOW, block_length=policy.block_size or 8)
    expected = [denoise(policy, batch, how) for batch in batches]
    policy.graphs = GraphedTrunk(policy.core, traces := Traces())
    found = [denoise(policy, batch, how) for batch in batches]
    for a, b in zip(chain(*expected), chain(*found), strict=True):
        assert torch.equal(a.completion_ids, b.completion_ids)
        assert torch.equal(a.revealed_at, b.revealed_at)
    if policy.block_size:  # its cache grows: nothing is recorded
        assert traces.recorded == 0
    else:
        assert 3 <= traces.recorded <= 6 and traces.replayed > 2 * traces.recorded


def test_a_recording_follows_updates_and_stands_for_one_set_of_weights(policy: LlmPolicy):
    ids = torch.randint(2, 20, (3, 12), generator=torch.Generator().manual_seed(0))
    policy.use_teacher("ema", 0.5)
    policy.graphs = GraphedTrunk(policy.core, traces := Traces())

    def states() -> dict[str, Tensor]:
        found = {"student": policy.hidden(ids, None)}
        with policy.teacher():
            found["teacher"] = policy.hidden(ids, None)
        with policy.reference():
            found["reference"] = policy.hidden(ids, None)
        with policy.attending("all"):
            found["all"] = policy.hidden(ids, None)
        return found

    with torch.no_grad():
        for _ in range(graphs.BEFORE + 1):
            states()
        recorded, before = traces.recorded, traces.replayed
        assert recorded == (4 if policy.block_size else 3)
        for p in policy.trainable().values():
            p.add_(0.1)
        policy.after_update()
        found = states()
        assert (traces.recorded, traces.replayed) == (recorded, before + 4)
        policy.graphs = None
        for name, expected in states().items():
            assert torch.equal(found[name], expected), name
    assert len({str(x) for x in found.values()}) == recorded


def gradients(policy: LlmPolicy, *batches: Tensor) -> list[Tensor]:
    trained = [*policy.trainable().values()]
    loss = sum(policy.hidden(ids, ids != 0).square().sum() for ids in batches)
    return [x.clone() for x in torch.autograd.grad(loss, trained)]


def test_updates_have_the_gradients_of_passes_launched_one_by_one(policy: LlmPolicy):
    draw = torch.Generator().manual_seed(0)
    batches = [torch.randint(0, 20, (3, 12), generator=draw) for _ in range(graphs.BEFORE + 4)]
    recorded, traces = GraphedTrunk(policy.core, Traces()), Traces()
    recorded.recorder = traces
    for number, ids in enumerate(batches):
        policy.graphs = None
        expected = gradients(policy, ids)
        policy.graphs = recorded
        assert all(map(torch.equal, gradients(policy, ids), expected)), number
        with torch.no_grad():
            for p in policy.trainable().values():
                p.add_(0.05)
    assert (traces.recorded, traces.replayed) == (1, 5)  # one replay is compared
    found = gradients(policy, *batches[:2])  # what the first keeps is not written over
    assert traces.replayed == 6
    policy.graphs = None
    assert all(map(torch.equal, found, gradients(policy, *batches[:2])))
    policy.graphs = recorded
    gradients(policy, batches[0])
    assert traces.replayed == 7
    gradients(policy, batches[0][:2])  # a new shape is not recorded at once
    assert recorded.update is None


def test_nothing_is_recorded_in_training_or_with_gradient_checkpointing(policy: LlmPolicy):
    ids = torch.ones(1, 6, dtype=torch.long)
    policy.graphs = GraphedTrunk(policy.core, traces := Traces())
    policy.core.train()
    with torch.no_grad():
        for _ in range(5):
            policy.hidden(ids, None)
    policy.core.eval()
    policy.use_gradient_checkpointing()
    for _ in range(5):
        assert policy.hidden(ids, None).requires_grad
    assert traces.recorded == 0


@pytest.mark.parametrize("fault", ["a replay differs", "no memory is left"])
def test_a_replay_that_differs_turns_recording_off(policy: LlmPolicy, fault: str, capsys):
    class Faulty(Traces):
        def record(self, compute: Compute, ids: Tensor, mask: Tensor | None) -> Callable:
            if fault == "no memory is left":
                raise torch.OutOfMemoryError
            return lambda: compute(ids + 1, mask)

        def record_pass(self, trunk: nn.Module, given: tuple[Tensor, ...]) -> Callable:
            if fault == "no memory is left":
                raise torch.OutOfMemoryError
            return lambda ids, mask: trunk(ids, mask) * 1.02

    ids = torch.randint(2, 20, (2, 6), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = policy.hidden(ids, None)
        policy.graphs = GraphedTrunk(policy.core, Faulty())
        for _ in range(graphs.BEFORE + 2):
            assert torch.equal(policy.hidden(ids, None), expected)
    said = capsys.readouterr().err
    assert said.count("forwards are launched one by one from here on") == 1 and fault in said
    expected, policy.graphs = gradients(policy, ids), GraphedTrunk(policy.core, Faulty())
    for _ in range(graphs.BEFORE + 2):
        assert all(map(torch.equal, gradients(policy, ids), expected))
    said = capsys.readouterr().err
    assert said.count("updates are launched one by one from here on") == 1 and fault in said


def test_few_recordings_are_kept(policy: LlmPolicy, monkeypatch):
    monkeypatch.setattr(graphs, "KEPT", 2)
    policy.graphs = GraphedTrunk(policy.core, traces := Traces())
    with torch.no_grad():
        for length in range(4, 4 + graphs.KEPT + 2):
            for _ in range(graphs.BEFORE + 1):
                policy.hidden(torch.ones(1, length, dtype=torch.long), None)
    assert len(policy.graphs.recordings) == graphs.KEPT < traces.recorded


def test_memory_of_recordings_is_given_back_and_recorded_again(policy: LlmPolicy):
    policy.graphs = GraphedTrunk(policy.core, traces := Traces())
    ids = torch.ones(1, 6, dtype=torch.long)
    with torch.no_grad():
        for recorded in (1, 2):
            for _ in range(graphs.BEFORE + 2):
                policy.hidden(ids, None)
            assert traces.recorded == recorded
            policy.release_memory()
            assert not policy.graphs.recordings


def test_compiled_blocks_are_not_recorded():
    with pytest.raises(ValueError, match="cuda_graphs records blocks that are not compiled"):
        ModelConfig(cuda_graphs=True, compile=True)


@pytest.mark.parametrize(
    ("kind", "device", "said"),
    [
        ("a2d-llama", "cpu", "model.cuda_graphs: needs an NVIDIA GPU, and none was found"),
        ("llada_moe", "cuda", "asks the GPU which experts have tokens"),
    ],
)
def test_what_cannot_be_recorded_is_refused(kind, device, said, tmp_path, monkeypatch):
    save_hub(tmp_path, kind)
    if device == "cuda":
        monkeypatch.setattr(loading, "check_kernels", lambda *_: None)
    with pytest.raises(DopsdError, match=said):
        load_policy(ModelConfig(path=str(tmp_path), cuda_graphs=True), None, 0)
