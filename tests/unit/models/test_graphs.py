"""Recorded forwards on a CPU, where a list of operators stands for a CUDA graph.

Like a graph it has the addresses and the branches of the time when it was recorded.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain

import pytest
import torch
from hub_toys import save_hub
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.checkpoint import checkpoint
from toys import save_toy

from dopsd.core.errors import DopsdError
from dopsd.core.fingerprint import key_from
from dopsd.models import graphs, loading
from dopsd.models.config import AdapterConfig, ModelConfig
from dopsd.models.graphs import Compute, CudaRecorder, GraphedTrunk
from dopsd.models.llm_policy import LlmPolicy, load_policy
from dopsd.rollout.config import Decoding
from dopsd.rollout.sampler import GenerationRequest, denoise

LORA = AdapterConfig(r=2, alpha=4, dropout=0.0, targets=["q_proj", "up_proj"])
HOW = Decoding(16, 8, 8, temperature=1.0, stop_after_eos=True)


class Tape:
    """Stands for a CUDA graph: operators that run again, on the memory that they had."""

    def __init__(self) -> None:
        self.operators: list[tuple] = []

    @torch.no_grad()
    def replay(self) -> None:
        for operator, given, more, out in self.operators:
            found = operator(*given, **more)
            read = {memory(x) for x in tensors((given, more))}
            for place, x in zip(tensors(out), tensors(found), strict=True):
                if place.numel() and memory(place) not in read:
                    place.copy_(x)


class Capture(TorchDispatchMode):
    """Stands for `torch.cuda.graph`."""

    def __init__(self, tape: Tape, **_) -> None:
        super().__init__()
        self.tape = tape

    def __torch_dispatch__(self, operator, types, given=(), more=None):
        assert operator is not torch.ops.aten._local_scalar_dense.default  # waits for the GPU
        out = operator(*given, **(more or {}))
        kept = tree_map_only(Tensor, Tensor.detach, (given, more or {}, out))
        self.tape.operators.append((operator, *kept))
        return out


def memory(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


def tensors(tree: object) -> list[Tensor]:
    return [x for x in tree_leaves(tree) if isinstance(x, Tensor)]


class Tapes(CudaRecorder):
    """Counts recordings and replays."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.recorded, self.replayed = 0, 0

    def record(self, *given) -> Callable:
        return self.counted(super().record(*given))

    def record_pass(self, *given) -> Callable:
        return self.counted(super().record_pass(*given))

    def counted(self, replay: Callable) -> Callable:
        self.recorded, self.last = self.recorded + 1, weakref.ref(replay)

        def once(*given: Tensor) -> Tensor:
            self.replayed += 1
            return replay(*given)

        return once


@pytest.fixture(autouse=True)
def tapes(monkeypatch) -> None:
    def nothing(*_, **__) -> nullcontext:
        return nullcontext()

    for place in (torch.cuda, torch.cuda.graphs):
        monkeypatch.setattr(place, "CUDAGraph", Tape)
        monkeypatch.setattr(place, "graph", Capture)
        monkeypatch.setattr(place, "graph_pool_handle", lambda: (0, 1))
    for name in ("synchronize", "Stream", "stream", "device", "current_stream", "set_stream"):
        monkeypatch.setattr(torch.cuda, name, nothing)


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
    policy.graphs = GraphedTrunk(policy.core, traces := Tapes())
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
    policy.graphs = GraphedTrunk(policy.core, traces := Tapes())

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
    recorded, traces = GraphedTrunk(policy.core, Tapes()), Tapes()
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


def summed(policy: LlmPolicy, batches: list[Tensor], way: Callable = lambda f, x: f(x)) -> Tensor:
    """Return the gradients of one update, which passes add to."""

    def loss(ids: Tensor) -> Tensor:
        return policy.hidden(ids, ids != 0).square().sum()

    trained = [*policy.trainable().values()]
    for p in trained:
        p.grad = None
    for ids in batches:
        way(loss, ids).backward()
    return torch.cat([p.grad.flatten() for p in trained])


def test_passes_of_an_update_add_up_and_their_memory_is_given_back(policy: LlmPolicy):
    draw = torch.Generator().manual_seed(0)
    batches = [torch.randint(0, 20, (3, 12), generator=draw) for _ in range(3)]
    expected = summed(policy, batches)
    policy.graphs = GraphedTrunk(policy.core, tapes := Tapes())
    for _ in range(2):  # the fourth pass begins before the third one is over
        gradients(policy, *batches[:2])
    assert tapes.recorded == 0
    for _ in range(3):
        assert torch.allclose(summed(policy, batches), expected, rtol=1e-5)
    assert (tapes.recorded, tapes.replayed) == (1, 10)
    gc.disable()
    policy.release_memory()
    gc.enable()
    assert tapes.last() is None and policy.graphs.update is None
    assert not any(p._backward_hooks for p in policy.trainable().values())


def test_the_last_pass_of_an_update_may_have_fewer_rows(policy: LlmPolicy):
    whole, rest = torch.full((3, 6), 2), torch.full((2, 6), 3)
    update = [whole, whole, whole, rest]
    expected = summed(policy, update)
    policy.graphs = GraphedTrunk(policy.core, tapes := Tapes())
    for _ in range(6):
        assert torch.allclose(summed(policy, update), expected, rtol=1e-5)
    assert (tapes.recorded, tapes.replayed) == (1, 16)  # from the second update on, and one
    summed(policy, [rest] * (2 * graphs.BEFORE - 1))
    assert tapes.recorded == 1  # what takes a recording's place must come twice as often
    summed(policy, [rest])
    assert tapes.recorded == 2


def test_a_weight_that_a_loss_does_not_reach_has_no_gradient(tmp_path):
    save_toy(tmp_path)
    policy = load_policy(ModelConfig(path=str(tmp_path)), None, 0)
    policy.train_all()  # with its head
    policy.graphs = GraphedTrunk(policy.core, tapes := Tapes())
    for _ in range(graphs.BEFORE + 2):
        policy.hidden(torch.full((3, 6), 2), None).square().sum().backward()
    assert tapes.replayed == 3


def test_forwards_that_run_again_are_launched(policy: LlmPolicy):
    batches = [torch.full((2, 6), token) for token in range(1, 6)]

    def again(loss: Callable, ids: Tensor) -> Tensor:
        return checkpoint(loss, ids, use_reentrant=False)

    expected = summed(policy, batches)
    policy.graphs = GraphedTrunk(policy.core, tapes := Tapes())
    for _ in range(3):
        assert torch.equal(summed(policy, batches, again), expected)
    with policy.reference():  # nothing is trained there
        for ids in batches:
            policy.hidden(ids, None)
    assert tapes.recorded == 0


def test_nothing_is_recorded_in_training_or_with_gradient_checkpointing(policy: LlmPolicy):
    ids = torch.ones(1, 6, dtype=torch.long)
    policy.graphs = GraphedTrunk(policy.core, traces := Tapes())
    policy.core.train()
    with torch.no_grad():
        for _ in range(5):
            policy.hidden(ids, None)
    policy.core.eval()
    policy.use_gradient_checkpointing()
    for _ in range(5):
        assert policy.hidden(ids, None).requires_grad
    assert traces.recorded == 0


def more(hidden: Tensor) -> Tensor:
    return hidden + 0.02 * hidden.detach()  # with the same gradients


def steeper(hidden: Tensor) -> Tensor:
    return 1.02 * hidden - 0.02 * hidden.detach()  # the same states


@pytest.mark.parametrize("wrong", [more, steeper, None])
def test_a_replay_that_differs_turns_recording_off(policy: LlmPolicy, wrong: Callable, capsys):
    fault = "a replay differs" if wrong else "no memory is left"

    class Faulty(Tapes):
        def record(self, compute: Compute, ids: Tensor, mask: Tensor | None) -> Callable:
            if not wrong:
                raise torch.OutOfMemoryError
            return lambda: compute(ids + 1, mask)

        def record_pass(self, trunk: nn.Module, given: tuple[Tensor, ...]) -> Callable:
            if not wrong:
                raise torch.OutOfMemoryError
            return lambda ids, mask: wrong(trunk(ids, mask))

    ids = torch.randint(2, 20, (2, 6), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = policy.hidden(ids, None)
        policy.graphs = GraphedTrunk(policy.core, Faulty())
        for _ in range(graphs.BEFORE + 2):
            assert torch.equal(policy.hidden(ids, None), expected)
    said = capsys.readouterr().err
    assert said.count("forwards are launched one by one from here on") == 1 and fault in said
    expected, policy.graphs = gradients(policy, ids), GraphedTrunk(policy.core, Faulty())
    for _ in range(2 * graphs.BEFORE + 2):
        assert all(map(torch.equal, gradients(policy, ids), expected))
    said = capsys.readouterr().err
    assert said.count("updates are launched one by one from here on") == 1 and fault in said


def test_few_recordings_are_kept(policy: LlmPolicy, monkeypatch):
    monkeypatch.setattr(graphs, "KEPT", 2)
    policy.graphs = GraphedTrunk(policy.core, traces := Tapes())
    with torch.no_grad():
        for length in range(4, 4 + graphs.KEPT + 2):
            for _ in range(graphs.BEFORE + 1):
                policy.hidden(torch.ones(1, length, dtype=torch.long), None)
    assert len(policy.graphs.recordings) == graphs.KEPT < traces.recorded


def test_memory_of_recordings_is_given_back_and_recorded_again(policy: LlmPolicy):
    policy.graphs = GraphedTrunk(policy.core, traces := Tapes())
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
