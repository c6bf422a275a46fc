"""Shard a frozen base over the processes of a run (FSDP2), for GPUs that cannot hold it whole.

Every forward then gathers a block's weights from all processes, so that all must make it together.
Adapters, embedding and head stay whole in each process. Gradients equal those of an unsharded run
to the bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from dopsd.distributed.uneven_forwards import LockstepForwards

if TYPE_CHECKING:
    from dopsd.models.denoiser import Denoiser


def spread(model: Denoiser, device: torch.device) -> LockstepForwards:
    """Shard the frozen weights of each block over the processes.

    Args:
        model: the model in main memory.
        device: where its shard, and all that is not sharded, goes.

    Returns:
        The forwards that all processes must make together.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    if not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    trunk = model.base_model
    for block in model.blocks():
        trainable = {p for p in block.parameters() if p.requires_grad}
        for p in trainable:
            p.data = p.data.to(device)
        fully_shard(block, mesh=mesh, ignored_params=trainable)
    unsharded = {p for p in model.parameters() if not isinstance(p, DTensor)}
    for p in unsharded:
        p.data = p.data.to(device)
    fully_shard(trunk, mesh=mesh, ignored_params=unsharded)
    return LockstepForwards(trunk, device)
