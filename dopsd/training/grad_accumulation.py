"""Gradients of one update, a micro-batch at a time: as many sequences at once as memory was
measured to hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from dopsd.core.errors import DopsdError
from dopsd.core.metrics import MetricSums
from dopsd.core.progress import log
from dopsd.models import memory
from dopsd.training.config import AUTO

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    from dopsd.algorithms.common.base import Algorithm
    from dopsd.algorithms.common.batch import Batch
    from dopsd.models.policy import Policy

ROWS = 3  # of the second pass that memory is measured with; the first has one
# share of the free memory to plan for: the optimizer's moments come later, and allocators waste
# some
FILLED = 0.8
MOST = 64  # sequences: more at once are no faster


@dataclass(frozen=True)
class Probe:
    """Bytes at the peak of a pass over so many sequences; others that the process held before are
    among them.
    """

    sequences: int
    peak: int


def fitting(small: Probe, large: Probe, held: int, free: int) -> int:
    """Sequences whose pass fits, from a straight line through two probes; MOST at most.

    Where the line does not rise, all that the smaller pass took is counted as its sequences'.
    """
    bytes_per_sequence = (large.peak - small.peak) / (large.sequences - small.sequences)
    if bytes_per_sequence <= 0:
        bytes_per_sequence = max((small.peak - held) / small.sequences, 1.0)
    available = held + FILLED * free - small.peak
    return max(1, min(MOST, small.sequences + int(available / bytes_per_sequence)))


class MicroBatches:
    """How many sequences stand in memory at once; halved once where that was too many. 0: not
    measured yet.
    """

    def __init__(self, requested: int | str, device: torch.device) -> None:
        if requested == AUTO and not memory.is_measurable(device):
            raise DopsdError(
                "train.micro_batch_states: auto needs an NVIDIA GPU or Linux to measure memory;"
                " give a number"
            )
        self.size = 0 if isinstance(requested, str) else requested
        self.device, self.is_halved = device, False

    def gradients(
        self, method: Algorithm, policy: Policy, batches: list[Batch], weight: float
    ) -> MetricSums:
        """Add the gradients of the batches' loss / weight to the trainable weights; its metrics.

        Raises DopsdError where memory does not hold half of what was tried first.
        """
        if batches and not self.size:
            self.size = self._measured(method, policy, max(batches, key=len))
        while (metrics := self._try_gradients(method, policy, batches, weight)) is None:
            self._halve(policy.is_locked)
        return metrics

    def _halve(self, is_locked: bool) -> None:
        if (
            self.is_halved or self.size == 1 or is_locked
        ):  # locked: the other processes would not make as many passes
            raise DopsdError(
                f"train: {self.size} states at once do not fit into memory; set a smaller"
                " train.micro_batch_states or train.gradient_checkpointing",
                exit_code=1,
            )
        self.is_halved, previous_size = True, self.size
        self.size = previous_size // 2
        log(
            f"train: {previous_size} states at once did not fit into memory: from here on"
            f" {self.size}"
        )

    def _try_gradients(
        self, method: Algorithm, policy: Policy, batches: list[Batch], weight: float
    ) -> MetricSums | None:
        """None, and no gradient, where memory ran out."""
        metrics = MetricSums()
        try:
            for micro_batch, share in self._passes(policy, batches):
                output = method.loss(policy, micro_batch)
                (share * output.total / weight).backward()
                if share:
                    metrics.merge(output.metrics)
                    metrics.add("loss", output.total.item() / weight, 0)
        except (
            torch.OutOfMemoryError
        ):  # the pass keeps its memory until this block is left: no second try in here
            _forget(policy.trainable().values())
            return None
        return metrics

    def _passes(self, policy: Policy, batches: list[Batch]) -> list[tuple[Batch, float]]:
        """The micro-batches, each with its share in the loss: 0 for passes made only because other
        processes make one.
        """
        micro_batches = [
            (micro_batch, 1.0) for batch in batches for micro_batch in batch.split(self.size)
        ]
        if not policy.is_locked:
            return micro_batches
        max_passes = max(policy.process_group.all_gather_object([len(micro_batches)]))
        rows = policy.process_group.all_gather_object(
            [next(micro_batches[0][0].split(1)).to("cpu")] if micro_batches else []
        )
        return micro_batches + [
            (rows[0].to(self.device), 0.0) for _ in range(max_passes - len(micro_batches))
        ]

    def _measured(self, method: Algorithm, policy: Policy, batch: Batch) -> int:
        """A pass over one row and one over a few, without a trace but the time; random numbers are
        put back.
        """
        devices = [self.device] if self.device.type == "cuda" else []

        def probe(rows: int) -> Probe:
            probe_batch = batch.rows([0] * rows)
            work = lambda: method.loss(policy, probe_batch).total.backward()  # noqa: E731
            return Probe(rows * batch.forwards, memory.peak(self.device, work))

        try:
            with torch.random.fork_rng(devices):
                probe(1)  # what is made once, at the first pass, is no part of a sequence's size
                size = fitting(
                    probe(1), probe(ROWS), memory.held(self.device), memory.free(self.device)
                )
        except torch.OutOfMemoryError:
            size = 1
        _forget(policy.trainable().values())
        log(
            f"train: {size} states at once, as measured memory allows (train.micro_batch_states:"
            f" {AUTO})"
        )
        return size


def _forget(weights: Iterable[Tensor]) -> None:
    for p in weights:
        p.grad = None
