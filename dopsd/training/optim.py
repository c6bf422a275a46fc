"""The optimizer's step: gradients summed over ranks and clipped, at this update's learning rate."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dopsd.core.errors import DopsdError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from accelerate import Accelerator
    from torch.optim import Optimizer

    from dopsd.training.config import TrainConfig


def adamw(parameters: Iterable[Tensor], settings: TrainConfig) -> Optimizer:
    betas = (settings.betas[0], settings.betas[1])
    return torch.optim.AdamW(
        parameters, lr=settings.learning_rate, betas=betas, weight_decay=settings.weight_decay
    )


def lr_factor(update: int, settings: TrainConfig) -> float:
    """Factor of the learning rate: linear warm-up from 0 at the first update, then constant or half
    a cosine to 0.
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
    """Sum gradients over ranks, clip them, take the step; the gradient norm before clipping.

    Raises DopsdError, before anything has changed, where that norm is not finite.
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
        )
    for group in optimizer.param_groups:
        group["lr"] = settings.learning_rate * lr_factor(update, settings)
    optimizer.step()
    optimizer.zero_grad()
    return norm
