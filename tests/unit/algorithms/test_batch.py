"""Batches in checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dopsd.algorithms.common.batch import Batch, batch_from


@dataclass(frozen=True)
class Advantages(Batch):
    """As a plug-in has it, in a package of its own."""

    advantage: Tensor
    weight: Tensor


def test_a_checkpoint_holds_batches_of_an_algorithms_own_class():
    batch = Advantages(torch.tensor([0.5, -0.5]), torch.ones(2))
    read = batch_from("Advantages", batch.tensors())
    assert isinstance(read, Advantages) and read.advantage.tolist() == [0.5, -0.5]
