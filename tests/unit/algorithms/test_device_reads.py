"""How often a process waits for its GPU: tensors of the device `meta` have no numbers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fakes import EOS, MASK, FakePolicy
from test_literal import collected

from dopsd.algorithms.common.base import LossOutput
from dopsd.algorithms.common.batch import MaskedTexts, States
from dopsd.algorithms.common.groups import Rewarded
from dopsd.algorithms.common.masking import MaskedText, masked
from dopsd.algorithms.d_opsd.algorithm import DOpsd
from dopsd.algorithms.d_opsd.config import DOpsdConfig
from dopsd.algorithms.d_opsd.states import BlockSchedule
from dopsd.algorithms.diffu_grpo.algorithm import DiffuGrpo
from dopsd.algorithms.diffu_grpo.config import DiffuGrpoConfig
from dopsd.algorithms.espo.algorithm import Espo
from dopsd.algorithms.espo.config import EspoConfig
from dopsd.algorithms.registry import ALGORITHMS
from dopsd.algorithms.spg.algorithm import Spg
from dopsd.algorithms.spg.config import SpgConfig
from dopsd.algorithms.vrpo.algorithm import Vrpo
from dopsd.algorithms.vrpo.config import VrpoConfig
from dopsd.algorithms.wd1.algorithm import Wd1
from dopsd.algorithms.wd1.config import Wd1Config
from dopsd.core.metrics import MetricSums
from dopsd.core.types import Rollout
from dopsd.rollout.config import Decoding
from dopsd.rollout.fast_dllm import denoise_approximately
from dopsd.rollout.sampler import GenerationRequest, Sampler, denoise
from dopsd.training.grad_accumulation import MicroBatches

BLOCKS = BlockSchedule(4, (2, 2), MASK, EOS)


class MetaPolicy(FakePolicy):
    """A model whose numbers nobody can read."""

    def __init__(self) -> None:
        super().__init__(8)
        self.device, self.table = torch.device("meta"), self.table.to("meta")

    def hidden(self, ids, attention_mask, kv_cache=None, cache_positions=None):
        assert ids.is_meta and (attention_mask is None or attention_mask.is_meta)
        return torch.zeros(*ids.shape, 8, device="meta")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the copies to main memory."""
    seen: list[int] = []

    def copied(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_meta:
            seen.append(tensor.numel())
            return torch.zeros(tensor.shape, dtype=tensor.dtype)
        return tensor

    real = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "cpu", copied)
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: real(copied(tensor)))
    return seen


def rollout(name: str, prompt: int) -> Rollout:
    return Rollout(name, 0, torch.arange(prompt), torch.arange(8) % 7, torch.arange(8) // 2)


def masks(*rows: str) -> torch.Tensor:
    return torch.tensor([[c == "x" for c in row] for row in rows])


IDS, PADDED = torch.ones(2, 10, dtype=torch.long), masks(".xxxxxxxxx", "xxxxxxxxxx")
HALF, QUARTER = masks("xxxx....", "....xx.."), masks("x.......", "....x...")
TEXTS = MaskedTexts(IDS, PADDED, IDS[:, 2:], HALF, torch.ones(2), torch.ones(2))
NUMBERS = torch.tensor([[2, 1], [0, 1], [0, 2]])  # k, block, step
STATES = States(IDS, PADDED, IDS, PADDED, HALF, QUARTER, *NUMBERS, torch.ones(2))
SWITCHES: list[tuple[str, dict[str, object]]] = [  # whose losses take another way
    ("d_opsd", {"position_selection": "student"}),
    ("d_opsd", {"position_selection": "all"}),
    ("espo", {"objective": "squared"}),
    ("espo", {"objective": "token"}),
]


@pytest.mark.parametrize(
    ("method", "changes"), [(name, {}) for name in ALGORITHMS.names] + SWITCHES
)
def test_the_loss_of_a_micro_batch_reads_from_its_device_once(project, request, method, changes):
    loop, batch = collected(method, **changes)
    reads = request.getfixturevalue("reads")  # from here on: collecting reads more often
    (micro_batch,) = batch.to("meta").split(10**6)
    output = loop.algorithm.loss(MetaPolicy(), micro_batch)
    assert output.total.is_meta and output.metrics and len(reads) == 1


def test_a_batch_keeps_what_it_was_made_of_but_not_in_checkpoints():
    uploaded = STATES.to("meta")
    assert all(value.is_meta for value in uploaded.tensors().values())
    (_, second), row = list(uploaded.split(1)), uploaded.rows([1])
    for part in (second, row):
        assert part.k.is_meta and part.on_host("k").tolist() == [1]
        assert part.attention_mask("student_mask") is None  # only the first row is padded
    assert uploaded.attention_mask("student_mask") is uploaded.student_mask
    changed = TEXTS.to("cpu").with_tensors(mask=torch.ones_like(PADDED))
    assert changed.attention_mask() is None


def test_batches_are_planned_in_main_memory_and_uploaded_whole(reads: list[int]):
    rollouts, policy = [rollout("p", 3), rollout("q", 5)], MetaPolicy()
    sampling = SimpleNamespace(batch_size=2, block_length=4)
    collector: Any = SimpleNamespace(
        seed=0,
        sampling=sampling,
        collect=lambda *_: [SimpleNamespace(best=r, is_kept=True) for r in rollouts],
        summary=lambda *_: None,
    )
    config = DOpsdConfig(updates_per_trajectory=2, drop_remainder=False)
    collected = DOpsd(config, collector, BLOCKS).collect(policy, [], 0)
    batches = [batch for update in collected.updates for batch in update]
    batches.append(
        masked(policy, [MaskedText(r.prompt_ids, r.completion_ids, 1) for r in rollouts])
    )
    rewarded = [Rewarded(r, 0.5, 0.5) for r in rollouts]
    batches.append(Spg(SpgConfig(), collector, 4).batch(policy, rewarded, 0, 0))
    batches.append(DiffuGrpo(DiffuGrpoConfig(), collector, 4).batch(policy, rewarded, 0, 0))
    batches.append(Wd1(Wd1Config(), collector, 4).batch(policy, rewarded, 0, 0))
    batches.append(Vrpo(VrpoConfig(), collector, 4)._pairs(policy, [(*rollouts,)], 0))
    batches.append(Espo(EspoConfig(), collector, 4).batch(policy, rewarded, 0, 0))
    assert len(batches) == 8 and not reads
    assert all(value.is_meta for batch in batches for value in batch.tensors().values())


@pytest.mark.parametrize("sampler", [denoise, denoise_approximately])
def test_a_batch_of_rollouts_is_read_from_the_device_once(sampler: Sampler, reads: list[int]):
    requests = [GenerationRequest(str(n), 0, torch.arange(n), n) for n in (2, 3)]
    found = sampler(MetaPolicy(), requests, Decoding(8, 4, 4, 0.9))
    assert reads == [2 * 8 * 2]  # ids and steps of both
    assert [len(r.completion_ids) for r in found] == [8, 8]


def test_the_losses_of_an_updates_micro_batches_are_read_from_the_device_once(reads: list[int]):
    weight = torch.ones(8, device="meta", requires_grad=True)
    policy: Any = SimpleNamespace(needs_lockstep=False, trainable=lambda: {"w": weight})
    algorithm: Any = SimpleNamespace(
        loss=lambda _, batch: LossOutput((weight * batch.k.sum()).sum(), MetricSums())
    )
    metrics = MicroBatches(1, torch.device("meta")).gradients(
        algorithm, policy, [STATES.to("meta")] * 2, 1.0
    )
    assert reads == [4] and metrics["loss"] == (0.0, 0.0)
