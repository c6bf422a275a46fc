"""One forward and backward pass: whether it fits, and which processes must know.

With sharded weights all processes make every pass together. If memory runs out in one of them, it
still takes part in the exchanges of the pass, and all of them learn of it afterwards.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import torch

from dopsd.algorithms.common.base import LossOutput
from dopsd.distributed.process_group import SingleProcess

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor

    from dopsd.algorithms.common.base import Algorithm
    from dopsd.algorithms.common.batch import Batch
    from dopsd.distributed.process_group import ProcessGroup
    from dopsd.models.policy import Policy


class Failed(NamedTuple):
    """A micro-batch for which memory ran out; the smallest one sorts first."""

    tokens: int  # of all its sequences, with padding
    rows: int
    forwards: int  # of a row
    padded_length: int

    @classmethod
    def of(cls, batch: Batch) -> Failed:
        """Return what is to be known about a micro-batch."""
        return cls(len(batch) * tokens_of(batch), len(batch), batch.forwards, batch.padded_length)


def one_pass(
    method: Algorithm, policy: Policy, micro_batch: Batch, weight: float, share: float = 1.0
) -> LossOutput | None:
    """Add the gradients of share * loss / weight, and return the loss; None if memory ran out.

    Args:
        method: the algorithm, which computes the loss.
        policy: the model in training.
        micro_batch: rows of one batch.
        weight: the denominator of the update.
        share: 0 for a pass that only takes part in the exchanges.
    """
    if policy.is_locked:
        policy.forwards.begin_pass()
    output = _if_it_fits(method, policy, micro_batch, weight, share)
    if policy.is_locked:
        policy.forwards.end_pass(output is not None)
    return output


def _if_it_fits(
    method: Algorithm, policy: Policy, micro_batch: Batch, weight: float, share: float = 1.0
) -> LossOutput | None:
    """Return the loss, or None; the error holds the pass's memory, so it must not leave here."""
    try:
        output = method.loss(policy, micro_batch)
        (share * output.total / weight).backward()
    except torch.OutOfMemoryError:
        return None
    return LossOutput(output.total.detach(), output.metrics)


def group_of(policy: Policy) -> ProcessGroup:
    """Return the processes that must agree about a pass: all with sharded weights, else this."""
    return policy.process_group if policy.is_locked else SingleProcess()


@contextmanager
def as_before(policy: Policy, device: torch.device) -> Iterator[None]:
    """Restore random states and drop gradients afterwards."""
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        forget(policy.trainable().values())


def tokens_of(batch: Batch) -> int:
    """Return the tokens of one row in all its forward passes, with padding."""
    return batch.forwards * batch.padded_length


def forget(weights: Iterable[Tensor]) -> None:
    """Drop the gradients of weights."""
    for p in weights:
        p.grad = None
