"""The optimizer: AdamW, its learning-rate schedule and its step over all ranks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from accelerate import Accelerator
    from torch.optim import Optimizer

    from dopsd.training.config import TrainConfig


def adamw(parameters: Iterable[Tensor], settings: TrainConfig) -> Optimizer:
    """Return AdamW with the settings of section `train`."""
    betas = (settings.betas[0], settings.betas[1])
    return torch.optim.AdamW(
        parameters, lr=settings.learning_rate, betas=betas, weight_decay=settings.weight_decay
    )


def lr_factor(update: int, settings: TrainConfig) -> float:
    """Return the factor of the learning rate at an update.

    The factor warms up linearly from 0 at the first update. Then it is 1, or half a cosine that
    ends at 0 after the last update.

    Args:
        update: the number of finished updates.
        settings: section `train`.
    """
    warmup = settings.warmup_updates
    if update < warmup:
        return update / warmup
    if settings.schedule == "constant":
        return 1.0
    return 0.5 * (1 + math.cos(math.pi * (update - warmup) / max(1, settings.updates - warmup)))


def optimizer_step(
    optimizer: Optimizer, accelerator: Accelerator, settings: TrainConfig, update: int
) -> float:
    """Sum the gradients over ranks, clip them and step.

    Args:
        optimizer: the optimizer; weights without a gradient get zeros.
        accelerator: the ranks.
        settings: section `train`.
        update: the number of finished updates.

    Returns:
        The norm of the summed gradients before clipping.

    Raises:
        DopsdError: if that norm is not finite; weights and moments have not changed then.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for p in parameters:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        if accelerator.num_processes > 1:
            p.grad = accelerator.reduce(p.grad, "sum")
    norm = torch.nn.utils.clip_grad_norm_(parameters, settings.grad_clip).item()
    if not math.isfinite(norm):
        raise DopsdError(
            f"train: loss or gradient is not finite at update {update + 1}; nothing after the last"
            " checkpoint is kept. Try a lower train.learning_rate, a smaller train.grad_clip or"
            " model.dtype float32",
            exit_code=1,
            code=Code.NOT_FINITE,
        )
    for group in optimizer.param_groups:
        group["lr"] = settings.learning_rate * lr_factor(update, settings)
    optimizer.step()
    optimizer.zero_grad()
    return norm
