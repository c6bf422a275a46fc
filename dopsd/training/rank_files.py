"""What each process keeps in a checkpoint, and how another number of processes shares it.

`batches.<rank>.safetensors` holds the rank's batches that no update has used yet, its random state
(of dropout) and its micro-batch size. As many processes as before read their own files and go on to
the bit. Another number of processes shares the batches anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from dopsd.core.rng import key_from
from dopsd.core.tensor_files import load_tensors, save_tensors
from dopsd.training import checkpoint
from dopsd.training.run_settings import MEMORY

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor

    from dopsd.algorithms.common.batch import Batch
    from dopsd.training.trainer import Trainer

OWN = ("rng", "cuda_rng", "micro_batch")  # names of a rank's tensors that are no batches


def write_own(loop: Trainer, folder: Path) -> None:
    """Write what a checkpoint keeps of this process."""
    updates = checkpoint.pack_updates(loop.waiting)
    save_tensors(updates | _own(loop), folder / _name(loop.accelerator.process_index))


def _name(rank: int) -> str:
    return f"batches.{rank}.safetensors"


def _own(loop: Trainer) -> dict[str, Tensor]:
    # kept, because a new measurement might give another size and thus other rounding; the
    # second number is not used
    size, tokens = loop.micro_batches.size, loop.micro_batches.tokens
    own = {"micro_batch": torch.tensor([size, 0, tokens]), "rng": torch.get_rng_state()}
    if torch.cuda.is_available():
        own["cuda_rng"] = torch.cuda.get_rng_state()
    return own


def restore(loop: Trainer, folder: Path, state: dict[str, Any]) -> None:
    """Restore batches, random state and micro-batch size of this process.

    Args:
        loop: the trainer.
        folder: the checkpoint.
        state: its state.json.

    Raises:
        ValueError, KeyError, TypeError, IndexError: if the files are not as written here.
    """
    rank, size = loop.accelerator.process_index, loop.accelerator.num_processes
    files = [load_tensors(folder / _name(number)) for number in range(state["ranks"])]
    own = [{name: tensors.pop(name) for name in OWN if name in tensors} for tensors in files]
    ranks = [checkpoint.unpack_updates(tensors, state["waiting"]) for tensors in files]
    if len(ranks) != size:
        ranks = [shared(ranks, number, size) for number in range(size)]
        own = [{}] * size
    _restore_own(loop, own[rank], state)
    loop.waiting = [[batch.to(loop.policy.device) for batch in update] for update in ranks[rank]]


def _restore_own(loop: Trainer, own: dict[str, Tensor], state: dict[str, Any]) -> None:
    if "rng" in own:
        torch.set_rng_state(own["rng"])
    else:  # of another number of ranks; without dropout nothing is drawn
        ranks = loop.accelerator.process_index, loop.accelerator.num_processes
        seed = key_from("dropout", loop.seed, state["update"], *ranks)
        torch.manual_seed(seed & 0x7FFFFFFF)
    if "cuda_rng" in own:
        torch.cuda.set_rng_state(own["cuda_rng"])
    memory_settings = {name: vars(loop.settings)[name] for name in MEMORY}
    if "micro_batch" in own and state["memory"] == memory_settings:
        size, _, tokens = own["micro_batch"].tolist()
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
