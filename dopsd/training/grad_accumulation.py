"""Accumulate the gradients of an update over micro-batches that fit into memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.optim import Optimizer

from dopsd.algorithms.common.base import Algorithm, LossOutput
from dopsd.core.errors import Code
from dopsd.core.metrics import MetricSums
from dopsd.core.progress import log
from dopsd.distributed.process_group import SingleProcess
from dopsd.models import memory
from dopsd.training.config import AUTO
from dopsd.training.optim import moments_to_come

if TYPE_CHECKING:
    from dopsd.algorithms.common.batch import Batch
    from dopsd.models.policy import Policy

ROWS = 3  # rows of the second pass that measures memory; the first pass has one
FILLED = 0.8  # share of the free memory to plan for: allocators waste some of it
MOST = 64  # sequences; more in one pass are no faster


@dataclass(frozen=True)
class Probe:
    """Measured memory of one forward and backward pass."""

    tokens: int  # of all its sequences, with padding
    peak: int  # bytes, including those that the process held before


def fitting(small: Probe, large: Probe, held: int, free: int) -> int:
    """Return how many tokens fit into memory by linear extrapolation; those of `small` at least.

    If the line through the two probes does not rise, the smaller probe's whole use of memory is
    attributed to its tokens.

    Args:
        free: bytes of free memory that nothing else needs later.
    """
    bytes_per_token = (large.peak - small.peak) / (large.tokens - small.tokens)
    if bytes_per_token <= 0:
        bytes_per_token = max((small.peak - held) / small.tokens, 1.0)
    available = held + FILLED * free - small.peak
    return small.tokens + max(0, int(available / bytes_per_token))


def one_pass(
    method: Algorithm, policy: Policy, micro_batch: Batch, denominator: float, share: float = 1.0
) -> LossOutput | None:
    """Add the gradients of share * loss / denominator, and return the loss; None if memory ran out.

    The error holds the memory of the pass, so it must not leave this function.

    Args:
        denominator: of the update (Trainer._denominator).
        share: 0 for a pass that only takes part in the exchanges of sharded weights.
    """
    try:
        output = method.loss(policy, micro_batch)
        (share * output.total / denominator).backward()
    except torch.OutOfMemoryError:
        if not policy.needs_lockstep:
            return None
        raise Code.OUT_OF_MEMORY.error(
            "train: out of memory with launch.shard; set train.micro_batch_states to a lower"
            " number, then the same command continues",
            1,
        ) from None
    return LossOutput(output.total.detach(), output.metrics)


class MicroBatches:
    """The micro-batch size of a run: set or measured, and halved whenever memory runs out."""

    def __init__(
        self, requested: int | str, device: torch.device, optimizer: Optimizer | None = None
    ) -> None:
        """Start with the setting.

        Args:
            requested: train.micro_batch_states.
            optimizer: the optimizer, whose first step needs memory for moments.
        """
        if requested == AUTO and not memory.is_measurable(device):
            raise Code.NO_GPU.error(
                "train.micro_batch_states: auto needs an NVIDIA GPU or Linux to measure memory;"
                " set a number"
            )
        self.size = 0 if isinstance(requested, str) else requested  # sequences; 0: not measured yet
        # most tokens in one pass, with padding; 0: any number. `auto` measures it, because long
        # sequences take more memory than short ones
        self.tokens = 0
        self.device, self.optimizer = device, optimizer

    def sequences(self, batch: Batch) -> int:
        """Return how many sequences of this batch one pass may have; one row is always passed."""
        return min(self.size, self.tokens // batch.padded_length) if self.tokens else self.size

    def gradients(
        self, method: Algorithm, policy: Policy, batches: list[Batch], denominator: float
    ) -> MetricSums:
        """Add the gradients of loss / denominator to the trainable weights; return the metrics."""
        if not self.size and (batches or policy.needs_lockstep):
            self._measure(method, policy, batches)
        while True:
            outcome = self._try_gradients(method, policy, batches, denominator)
            if isinstance(outcome, MetricSums):
                return outcome
            self._halve(outcome)

    def _halve(self, failed: Batch) -> None:
        """Allow half of the rows of a micro-batch for which memory ran out."""
        states, fewer = len(failed) * failed.forwards, len(failed) // 2 * failed.forwards
        if not fewer:
            raise Code.OUT_OF_MEMORY.error(
                f"train: out of memory at {states} state{'s' * (states > 1)} per pass; run `dopsd"
                " params --set train.gradient_checkpointing=true`, then the same command continues",
                1,
            )
        if self.tokens:
            self.tokens = fewer * failed.padded_length
        else:
            self.size = fewer
        log(
            f"train: out of memory at {states} states per pass; micro-batch reduced to {fewer}. Set"
            " train.micro_batch_states to choose another size."
        )

    def _try_gradients(
        self, method: Algorithm, policy: Policy, batches: list[Batch], denominator: float
    ) -> MetricSums | Batch:
        """Return the metrics; if memory ran out, no gradients and the micro-batch of that pass."""
        # one pass for each micro-batch; the first that does not fit ends the attempt
        metrics, totals = MetricSums(), []
        for micro_batch, share in self._passes(policy, batches):
            output = one_pass(method, policy, micro_batch, denominator, share)
            if output is None:
                _drop_gradients(policy.trainable().values())
                policy.release_memory()
                return micro_batch
            if share:
                metrics.merge(output.metrics)
                totals.append(output.total)
        for total in torch.stack(totals).tolist() if totals else []:  # one wait for an update
            metrics.add("loss", total / denominator, 0)  # a part of it: Trainer.step counts
        return metrics

    def _passes(self, policy: Policy, batches: list[Batch]) -> list[tuple[Batch, float]]:
        """Return the micro-batches, each with its factor in the loss.

        With sharded weights every process must make as many passes: a process with fewer
        micro-batches repeats a row with factor 0.
        """
        micro_batches = [
            (micro_batch, 1.0)
            for batch in batches
            for micro_batch in batch.split(self.sequences(batch))
        ]
        if not policy.needs_lockstep:
            return micro_batches
        max_passes = max(policy.process_group.all_gather_object([len(micro_batches)]))
        row = self._any_row(policy, batches)
        return micro_batches + [(row, 0.0) for _ in range(max_passes - len(micro_batches)) if row]

    def _any_row(self, policy: Policy, batches: list[Batch]) -> Batch | None:
        """Return one row of the batches of any process; None if there are none at all."""
        own = [next(batches[0].split(1)).to("cpu")] if batches else []
        rows = policy.process_group.all_gather_object(own)
        return rows[0].to(self.device) if rows else None

    def _measure(self, method: Algorithm, policy: Policy, batches: list[Batch]) -> None:
        """Measure how many tokens fit by passes over one row and over ROWS.

        Gradients are dropped and random states restored, so that only time passes. With sharded
        weights all processes measure, and all take the smallest number.
        """
        group = policy.process_group if policy.needs_lockstep else SingleProcess()
        row = self._any_row(policy, batches) if policy.needs_lockstep else None
        batch = max(batches, key=_tokens_of, default=row)
        if batch is None:
            return
        policy.release_memory()

        def probe(rows: int) -> Probe:
            probe_batch, outputs = batch.rows([0] * rows), []
            work = lambda: outputs.append(one_pass(method, policy, probe_batch, 1.0))  # noqa: E731
            peak = memory.peak(self.device, work)
            if outputs[0] is None:
                raise torch.OutOfMemoryError
            return Probe(rows * _tokens_of(batch), peak)

        self.size, self.tokens = MOST, _tokens_of(batch)
        with suppress(torch.OutOfMemoryError), _no_trace(policy, self.device):  # one row, then
            probe(1)  # warm-up: the first pass also allocates what is needed only once
            probes = probe(1), probe(ROWS)
            later = moments_to_come(self.optimizer) if self.optimizer else 0
            free = memory.free(self.device) - later
            self.tokens = fitting(*probes, memory.held(self.device), free)
        self.tokens = min(group.all_gather_object([self.tokens]))
        states = max(self.sequences(batch), batch.forwards)
        log(
            f"train: micro-batches of {self.tokens} tokens, or {states} states of"
            f" {batch.padded_length}, from measured memory (train.micro_batch_states: {AUTO})"
        )


@contextmanager
def _no_trace(policy: Policy, device: torch.device) -> Iterator[None]:
    """Restore random states and drop gradients afterwards."""
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        _drop_gradients(policy.trainable().values())


def _drop_gradients(weights: Iterable[Tensor]) -> None:
    for p in weights:
        p.grad = None


def _tokens_of(batch: Batch) -> int:
    """Return the tokens of one row in all its forward passes, with padding."""
    return batch.forwards * batch.padded_length
