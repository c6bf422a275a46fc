"""The optimizer: AdamW, its learning-rate schedule and its step over all ranks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from dopsd.core.errors import Code

if TYPE_CHECKING:
    from accelerate import Accelerator

    from dopsd.training.config import TrainConfig

STATE = ("step", "exp_avg", "exp_avg_sq")  # AdamW's state of a weight: its count and two moments
BUCKET = 256 * 2**20  # bytes of gradients in one all-reduce


def adamw(parameters: Iterable[Tensor], settings: TrainConfig) -> Optimizer:
    """Return AdamW with the settings of section `train`.

    On a GPU its step is one fused kernel; on a CPU that would round differently.
    """
    weights, betas = list(parameters), (settings.betas[0], settings.betas[1])
    return torch.optim.AdamW(
        weights,
        lr=settings.learning_rate,
        betas=betas,
        weight_decay=settings.weight_decay,
        fused=weights[0].device.type == "cuda" or None,
    )


def restore_moments(optimizer: Optimizer, names: Iterable[str], tensors: dict[str, Tensor]) -> None:
    """Restore the optimizer's state from a checkpoint.

    Torch chooses the devices: moments go to their weight, a `step` that the host reads stays there.

    Raises:
        KeyError: if a tensor is missing.
    """
    state = {i: {kind: tensors[f"{kind}/{name}"] for kind in STATE} for i, name in enumerate(names)}
    optimizer.load_state_dict(optimizer.state_dict() | {"state": state})


def moments_to_come(optimizer: Optimizer) -> int:
    """Return the bytes of the moments that the optimizer's first step will allocate."""
    weights = [p for group in optimizer.param_groups for p in group["params"]]
    return sum(2 * p.nbytes for p in weights if p not in optimizer.state)


def with_warmup(settings: TrainConfig, problems: int, updates_of_collect: int) -> TrainConfig:
    """Return the settings with the number of warm-up updates that `warmup_ratio` asks for.

    It is a share of the updates of one pass over the training problems, rounded up, as transformers
    counts a run of one epoch; `updates` does not matter.
    """
    if settings.warmup_ratio is None:
        return settings
    epoch = math.ceil(problems * updates_of_collect / settings.prompts_per_collect)
    return settings.model_copy(update={"warmup_updates": math.ceil(epoch * settings.warmup_ratio)})


def lr_factor(update: int, settings: TrainConfig) -> float:
    """Return the factor of the learning rate at an update.

    The factor warms up linearly from 0 at the first update. Then it is 1, or half a cosine or a
    line that ends at 0 after the last update.
    """
    warmup = settings.warmup_updates
    if update < warmup:
        return update / warmup
    if settings.schedule == "constant":
        return 1.0
    progress = (update - warmup) / max(1, settings.updates - warmup)
    if settings.schedule == "linear":
        return 1 - progress
    return 0.5 * (1 + math.cos(math.pi * progress))


def sum_gradients(parameters: Iterable[Tensor]) -> None:
    """Replace the gradients of all ranks by their sum, a bucket at a time.

    With two ranks the bytes do not depend on the buckets; with more, the order of a sum may.
    """
    for bucket in _buckets(parameters):
        total = torch.cat([p.grad.flatten() for p in bucket if p.grad is not None])
        dist.all_reduce(total)
        for p, gradient in zip(bucket, total.split([p.numel() for p in bucket]), strict=True):
            p.grad = gradient.view_as(p)


def _buckets(parameters: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Yield the weights in runs of one dtype and at most BUCKET bytes."""
    bucket: list[Tensor] = []
    for p in parameters:
        size = sum(other.nbytes for other in bucket) + p.nbytes
        if bucket and (size > BUCKET or p.dtype != bucket[0].dtype):
            yield bucket
            bucket = []
        bucket.append(p)
    if bucket:
        yield bucket


def optimizer_step(
    optimizer: Optimizer, accelerator: Accelerator, settings: TrainConfig, update: int
) -> float:
    """Sum the gradients over ranks, clip them and step.

    Args:
        optimizer: the optimizer; weights without a gradient get zeros.

    Returns:
        The norm of the summed gradients before clipping.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for p in parameters:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
    if accelerator.num_processes > 1:
        sum_gradients(parameters)
    norm = torch.nn.utils.clip_grad_norm_(parameters, settings.grad_clip).item()
    if not math.isfinite(norm):
        raise Code.NOT_FINITE.error(
            f"train: loss or gradient is not finite at update {update + 1}; nothing after the last"
            " checkpoint is kept. Try a lower train.learning_rate, a smaller train.grad_clip or"
            " model.dtype float32",
            1,
        )
    for group in optimizer.param_groups:
        group["lr"] = settings.learning_rate * lr_factor(update, settings)
    optimizer.step()
    optimizer.zero_grad()
    return norm
