"""A run between two updates: what a checkpoint holds of it besides the trained weights.

`state.json` has the counts, `trainer.safetensors` the optimizer's moments and the moving average.
`batches.<rank>.safetensors` has what each process keeps: its batches that no update has used yet,
its random state (of dropout) and its micro-batch size. As many processes as before read their own
files and go on to the bit. Another number of processes shares the batches anew.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from dopsd.algorithms.common.batch import Batch, batch_from
from dopsd.core.metrics import MetricSums

# fields that state.json holds as they are
COUNTS = (
    "update",
    "counters",
    "memory",
    "empty_in_a_row",
    "spent",
    "cpu_spent",
    "scores",
    "squares",
)
OF_RANK = ("rng", "cuda_rng", "micro_batch")  # names of a process's tensors that are no batches
AVERAGE = "ema/"  # begins the names of the moving average


@dataclass
class TrainerState:
    """The state of a run between two updates, in one process."""

    update: int  # finished updates
    counters: dict[str, int]  # of collects and what they gave
    memory: dict[str, Any]  # the settings MEMORY, to which `micro_batch` belongs
    empty_in_a_row: int  # collects that gave nothing to learn from
    spent: float  # seconds of collects since the last update
    cpu_spent: float
    scores: list[float]  # mean score of each collect
    squares: list[float]  # mean squared score of each collect
    gathered: MetricSums  # of the collects since the last update
    waiting: list[list[Batch]]  # the batches of each update of the current collect
    tensors: dict[str, Tensor]  # the optimizer's moments by kind/name, the average by ema/name
    rng: Tensor | None  # None: of another number of processes
    cuda_rng: Tensor | None  # None: also without a GPU
    micro_batch: tuple[int, int] | None  # most sequences and most tokens in one pass

    def to_dict(self) -> dict[str, Any]:
        """Return the values of state.json."""
        counts = {name: getattr(self, name) for name in COUNTS}
        return counts | {"gathered": self.gathered, "waiting": len(self.waiting)}

    def rank_tensors(self) -> dict[str, Tensor]:
        """Return the tensors that only this process keeps."""
        tensors = pack_updates(self.waiting)
        if self.micro_batch:
            size, tokens = self.micro_batch
            tensors["micro_batch"] = torch.tensor([size, 0, tokens])  # the second is not used
        own = {"rng": self.rng, "cuda_rng": self.cuda_rng}
        return tensors | {name: value for name, value in own.items() if value is not None}

    @classmethod
    def from_dict(
        cls,
        values: dict[str, Any],
        tensors: dict[str, Tensor],
        tensors_of_ranks: list[dict[str, Tensor]],
        rank: int,
        size: int,
    ) -> Self:
        """Return the state of one process from what all of them wrote.

        Raises:
            ValueError, KeyError, TypeError, IndexError: if they are not as written here.
        """
        own = [{name: t.pop(name) for name in OF_RANK if name in t} for t in tensors_of_ranks]
        waiting = [unpack_updates(tensors, values["waiting"]) for tensors in tensors_of_ranks]
        if len(waiting) != size:
            waiting, own = [shared(waiting, number, size) for number in range(size)], [{}] * size
        micro_batch = own[rank]["micro_batch"].tolist() if "micro_batch" in own[rank] else None
        return cls(
            **{name: values[name] for name in COUNTS},
            gathered=MetricSums({name: (a, b) for name, (a, b) in values["gathered"].items()}),
            waiting=waiting[rank],
            tensors=tensors,
            rng=own[rank].get("rng"),
            cuda_rng=own[rank].get("cuda_rng"),
            micro_batch=(micro_batch[0], micro_batch[2]) if micro_batch else None,
        )

    @property
    def average(self) -> dict[str, Tensor]:
        """The moving average of the trained weights, by name; empty: there is none."""
        return {
            name.removeprefix(AVERAGE): tensor
            for name, tensor in self.tensors.items()
            if name.startswith(AVERAGE)
        }


def pack_updates(updates: list[list[Batch]]) -> dict[str, Tensor]:
    """Return a collect's unused updates as tensors named <update>.<batch>.<type>.<field>."""
    return {
        f"{u}.{b}.{type(batch).__name__}.{name}": tensor
        for u, batches in enumerate(updates)
        for b, batch in enumerate(batches)
        for name, tensor in batch.tensors().items()
    }


def unpack_updates(tensors: dict[str, Tensor], count: int) -> list[list[Batch]]:
    """Rebuild the updates that `pack_updates` packed.

    Args:
        tensors: named tensors, <update>.<batch>.<type>.<field>.
        count: the number of updates; an update without batches has no tensors.

    Raises:
        ValueError: if a name is malformed, or a tensor has an unexpected shape.
        KeyError: if a batch type is unknown.
        TypeError: if a batch lacks a field.
        IndexError: if an update's number is not below `count`.
    """
    batch_tensors: dict[tuple[int, int, str], dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        update, batch, kind, name = key.split(".")
        batch_tensors.setdefault((int(update), int(batch), kind), {})[name] = tensor
    updates: list[list[Batch]] = [[] for _ in range(count)]
    for (index, _, kind), values in sorted(batch_tensors.items()):
        updates[index].append(batch_from(kind, values))
    return updates


def shared(
    updates_of_ranks: Sequence[list[list[Batch]]], rank: int, size: int
) -> list[list[Batch]]:
    """Return the share of one of `size` processes in the updates of any number of ranks.

    Rows of an update are dealt in their order, as equal parts of consecutive rows.
    """
    shares = []
    for batches_of_ranks in zip(*updates_of_ranks, strict=True):
        batches = [batch for batches in batches_of_ranks for batch in batches]
        rows = sum(map(len, batches))
        low, high, offset, share = rows * rank // size, rows * (rank + 1) // size, 0, []
        for batch in batches:
            part = range(max(low - offset, 0), min(high - offset, len(batch)))
            share += [batch.rows([*part])] if part else []
            offset += len(batch)
        shares.append(share)
    return shares
