"""Batches in checkpoints, and how long their sequences are."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dopsd.algorithms.common.batch import Batch, MaskedTexts, PreferenceBatch, batch_from


@dataclass(frozen=True)
class Advantages(Batch):
    """As a plug-in has it, in a package of its own."""

    advantage: Tensor
    weight: Tensor


def test_a_checkpoint_holds_batches_of_an_algorithms_own_class():
    batch = Advantages(torch.tensor([0.5, -0.5]), torch.ones(2))
    read = batch_from("Advantages", batch.tensors())
    assert isinstance(read, Advantages) and read.advantage.tolist() == [0.5, -0.5]


def test_a_sequence_is_as_long_as_the_ids_of_its_forward():
    ids, text, row = torch.zeros(1, 9), torch.zeros(1, 4), torch.ones(1)
    assert MaskedTexts(ids, ids, text, text, row, row).padded_length == 9
    pair = PreferenceBatch(
        *(torch.zeros(1, 5), torch.ones(1, 5), torch.zeros(1, 2, 4)),
        *(torch.zeros(1, 2, 3, 4), torch.ones(1, 2), torch.ones(1, 2), row),
    )
    assert (pair.padded_length, pair.forwards) == (5 + 4, 2 * 3)  # prompt and completion apart
    assert Advantages(row, row).padded_length == 1
