"""A frozen base in parts over the processes of a run (FSDP2), for cards that do not hold it whole.

Every forward then gathers a block's weights from all processes, so that all must make it together. Adapters, embedding
and head stay whole in each process; gradients are those of an unsharded run, to the bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from dopsd.errors import StopRequested

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn
    from transformers import PreTrainedModel


class UnevenForwards:
    """Forwards that no other process has to make as well."""

    is_locked = False
    should_stop: Callable[[], bool] = staticmethod(lambda: False)  # asked before every forward

    def before_forward(self) -> None:
        """Before a forward. Raises StopRequested instead of letting it begin where this process must stop."""
        if self.should_stop():
            raise StopRequested(is_agreed=False)

    def join(self) -> None:
        """Before anything else that all processes do together: take part in the others' forwards until none is left."""


class LockstepForwards(UnevenForwards):
    """Forwards of a base in parts: whoever has none of its own makes an empty one."""

    is_locked = True

    def __init__(self, trunk: nn.Module, device: torch.device) -> None:
        self.trunk, self.device = trunk, device

    def before_forward(self) -> None:
        self._working(1)

    def join(self) -> None:
        while self._working(0):
            with torch.no_grad():
                self.trunk(torch.zeros((1, 1), dtype=torch.long, device=self.device))

    def _working(self, own: int) -> int:
        """How many processes are about to make a forward of their own; all of them stop if one must."""
        counts = torch.tensor([own, self.should_stop()], device=self.device)
        dist.all_reduce(counts)
        working, stopping = counts.tolist()
        if stopping:
            raise StopRequested(is_agreed=True)
        return working


def spread(model: PreTrainedModel, device: torch.device) -> LockstepForwards:
    """Leave a part of each block's frozen weights in this process; all that is not sharded goes to the device."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    if device.type == "cuda":
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    trunk = model.model
    for block in trunk.transformer["blocks"]:
        own = {p for p in block.parameters() if p.requires_grad}
        for p in own:
            p.data = p.data.to(device)
        fully_shard(block, mesh=mesh, ignored_params=own)
    whole = {p for p in model.parameters() if not isinstance(p, DTensor)}
    for p in whole:
        p.data = p.data.to(device)
    fully_shard(trunk, mesh=mesh, ignored_params=whole)
    return LockstepForwards(trunk, device)
