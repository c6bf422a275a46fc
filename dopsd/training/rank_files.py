"""What each process keeps in a checkpoint, and how another number of processes shares it.

`batches.<rank>.safetensors` holds the rank's batches that no update has used yet, its random state
(of dropout) and its micro-batch size. As many processes as before read their own files and go on to
the bit. Another number of processes shares the batches anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from dopsd.core.rng import key_from
from dopsd.core.tensor_files import load_tensors
from dopsd.training import checkpoint
from dopsd.training.run_settings import MEMORY

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor

    from dopsd.algorithms.common.batch import Batch
    from dopsd.training.trainer import Trainer

NOT_BATCHES = ("rng", "cuda_rng", "micro_batch")  # names of a rank's other tensors


def name_of(rank: int) -> str:
    """Return the name of a rank's file in a checkpoint."""
    return f"batches.{rank}.safetensors"


def rank_tensors(loop: Trainer) -> dict[str, Tensor]:
    """Return what the checkpoint keeps of this process."""
    tensors = checkpoint.pack_updates(loop.waiting) | {"rng": torch.get_rng_state()}
    # kept, because a new measurement might give another size and thus other rounding; the
    # second entry said in older releases whether the size was halved
    size, tokens = loop.micro_batches.size, loop.micro_batches.tokens
    tensors["micro_batch"] = torch.tensor([size, 0, tokens])
    if torch.cuda.is_available():
        tensors["cuda_rng"] = torch.cuda.get_rng_state()
    return tensors


def restore(loop: Trainer, folder: Path, state: dict[str, Any]) -> None:
    """Restore batches, random state and micro-batch size of this process.

    Args:
        loop: the trainer.
        folder: the checkpoint.
        state: its state.json.

    Raises:
        ValueError, KeyError, TypeError, IndexError: if the files are not as written here.
    """
    ranks = [load_tensors(folder / name_of(rank)) for rank in range(state["ranks"])]
    others = [{name: ranks_.pop(name, None) for name in NOT_BATCHES} for ranks_ in ranks]
    updates = [checkpoint.unpack_updates(tensors, state["waiting"]) for tensors in ranks]
    rank, size = loop.accelerator.process_index, loop.accelerator.num_processes
    if len(ranks) == size:
        own, waiting = others[rank], updates[rank]
        _restore_own(loop, own, state)
    else:
        waiting = shared(updates, rank, size)
        # no rank has a random state of its own: without dropout none is used
        seed = key_from("dropout", loop.seed, state["update"], rank, size)
        torch.manual_seed(seed & 0x7FFFFFFF)
    loop.waiting = [[batch.to(loop.policy.device) for batch in update] for update in waiting]


def _restore_own(loop: Trainer, own: dict[str, Any], state: dict[str, Any]) -> None:
    torch.set_rng_state(own["rng"])
    if own["cuda_rng"] is not None:
        torch.cuda.set_rng_state(own["cuda_rng"])
    size, _, tokens = [*own["micro_batch"].tolist(), 0][:3]  # older releases kept two numbers
    memory_settings = {name: vars(loop.settings)[name] for name in MEMORY}
    if state.get("memory", memory_settings) == memory_settings:
        loop.micro_batches.size, loop.micro_batches.tokens = size, tokens


def shared(
    updates_of_ranks: Sequence[list[list[Batch]]], rank: int, size: int
) -> list[list[Batch]]:
    """Return the share of one of `size` processes in the updates of any number of ranks.

    Rows of an update are dealt in their order, as equal parts of consecutive rows.

    Args:
        updates_of_ranks: the batches of each update, of each rank that wrote the checkpoint.
        rank: this process.
        size: number of processes now.
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
