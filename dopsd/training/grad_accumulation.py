"""Accumulate the gradients of an update over micro-batches that fit into memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from dopsd.core.error_codes import Code
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

ROWS = 3  # rows of the second pass that measures memory; the first pass has one
# Share of the free memory to plan for: the optimizer's moments come later, and allocators waste
# some of it.
FILLED = 0.8
MOST = 64  # sequences; more in one pass are no faster


@dataclass(frozen=True)
class Probe:
    """Measured memory of one forward and backward pass."""

    sequences: int
    peak: int  # bytes, including those that the process held before


def fitting(small: Probe, large: Probe, held: int, free: int) -> int:
    """Return how many sequences fit into memory, at most MOST, by linear extrapolation.

    If the line through the two probes does not rise, the smaller probe's whole use of memory is
    attributed to its sequences.

    Args:
        small: the probe with fewer sequences.
        large: the probe with more sequences.
        held: bytes that the process held before.
        free: bytes of free memory.
    """
    bytes_per_sequence = (large.peak - small.peak) / (large.sequences - small.sequences)
    if bytes_per_sequence <= 0:
        bytes_per_sequence = max((small.peak - held) / small.sequences, 1.0)
    available = held + FILLED * free - small.peak
    return max(1, min(MOST, small.sequences + int(available / bytes_per_sequence)))


class MicroBatches:
    """The micro-batch size of a run, measured when `auto` and halved at most once.

    `size` is the number of states in one pass; 0 means not measured yet.
    """

    def __init__(self, requested: int | str, device: torch.device) -> None:
        if requested == AUTO and not memory.is_measurable(device):
            raise DopsdError(
                "train.micro_batch_states: auto needs an NVIDIA GPU or Linux to measure memory;"
                " set a number",
                code=Code.NO_GPU,
            )
        self.size = 0 if isinstance(requested, str) else requested
        self.device, self.is_halved = device, False

    def gradients(
        self, method: Algorithm, policy: Policy, batches: list[Batch], weight: float
    ) -> MetricSums:
        """Add the gradients of loss / weight to the trainable weights, and return the metrics.

        Args:
            method: the algorithm, which computes the loss.
            policy: the model in training.
            batches: the batches of this rank; may be empty.
            weight: the denominator of the update, over all ranks.

        Raises:
            DopsdError: if half of the first micro-batch does not fit into memory.
        """
        if batches and not self.size:
            self.size = self._measured(method, policy, max(batches, key=len))
        while (metrics := self._try_gradients(method, policy, batches, weight)) is None:
            self._halve(policy.is_locked)
        return metrics

    def _halve(self, is_locked: bool) -> None:
        # With sharded weights (locked) the other processes would not make as many passes.
        if self.is_halved or self.size == 1 or is_locked:
            fewer = f"`dopsd params --set train.micro_batch_states={self.size // 2}` or "
            raise DopsdError(
                f"train: out of memory at {self.size} states per pass; run"
                f" {fewer if self.size > 1 else ''}`dopsd params --set"
                " train.gradient_checkpointing=true`, then the same command continues",
                exit_code=1,
                code=Code.OUT_OF_MEMORY,
            )
        self.is_halved, previous_size = True, self.size
        self.size = previous_size // 2
        log(
            f"train: out of memory at {previous_size} states per pass; micro-batch reduced to"
            f" {self.size}. Set train.micro_batch_states to choose another size."
        )

    def _try_gradients(
        self, method: Algorithm, policy: Policy, batches: list[Batch], weight: float
    ) -> MetricSums | None:
        """Return the metrics, or None and no gradients if memory ran out."""
        metrics, totals = MetricSums(), []
        try:
            for micro_batch, share in self._passes(policy, batches):
                output = method.loss(policy, micro_batch)
                (share * output.total / weight).backward()
                if share:
                    metrics.merge(output.metrics)
                    totals.append(output.total.detach())
        except torch.OutOfMemoryError:  # the pass holds its memory until this block ends: no retry
            _forget(policy.trainable().values())
            return None
        for total in torch.stack(totals).tolist() if totals else []:  # one wait for an update
            metrics.add("loss", total / weight, 0)
        return metrics

    def _passes(self, policy: Policy, batches: list[Batch]) -> list[tuple[Batch, float]]:
        """Return the micro-batches, each with its factor in the loss.

        With sharded weights every process must make as many passes: a process with fewer
        micro-batches repeats a row with factor 0.
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
        """Measure how many states fit by passes over one row and over ROWS.

        Gradients are dropped and random states restored, so that only time passes.
        """
        devices = [self.device] if self.device.type == "cuda" else []

        def probe(rows: int) -> Probe:
            probe_batch = batch.rows([0] * rows)
            work = lambda: method.loss(policy, probe_batch).total.backward()  # noqa: E731
            return Probe(rows * batch.forwards, memory.peak(self.device, work))

        try:
            with torch.random.fork_rng(devices):
                probe(1)  # warm-up: the first pass also allocates what is needed only once
                size = fitting(
                    probe(1), probe(ROWS), memory.held(self.device), memory.free(self.device)
                )
        except torch.OutOfMemoryError:
            size = 1
        _forget(policy.trainable().values())
        log(
            f"train: micro-batch of {size} states, from measured memory (train.micro_batch_states:"
            f" {AUTO})"
        )
        return size


def _forget(weights: Iterable[Tensor]) -> None:
    for p in weights:
        p.grad = None
