"""Batches in checkpoints, also under the names that release 0.1 gave them."""

from __future__ import annotations

import torch

from dopsd.algorithms.common.batch import GroupBatch
from dopsd.training.checkpoint import pack_updates, unpack_updates


def test_a_checkpoint_of_release_0_1_gives_the_batch_that_it_held():
    tensors = {name: torch.tensor([[float(i)]]) for i, name in enumerate(vars(group()))}
    old = {"completion_mask": "counted", "old_logps": "old", "ref_logps": "reference"}
    found = unpack_updates({f"0.0.Group.{old.get(k, k)}": v for k, v in tensors.items()}, 1)
    assert found[0][0].tensors() == tensors
    assert list(pack_updates(found)) == [f"0.0.GroupBatch.{name}" for name in tensors]


def group() -> GroupBatch:
    return GroupBatch(*[torch.zeros(1, 1)] * 8)
