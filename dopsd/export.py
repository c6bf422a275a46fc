"""`dopsd export --merged --adapter DIR --out DIR`: base and adapter as one folder that plain transformers loads.

In bfloat16 most of a small adapter's change is lost to rounding (a weight near 1 moves in steps of 1/128); float32 keeps
it. What was lost is measured and said.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dopsd.checkpoint import read_adapter
from dopsd.config import Model, Params
from dopsd.errors import DopsdError
from dopsd.models import LlmPolicy, load_policy
from dopsd.models.lora import changes, load_adapter, lora_of
from dopsd.progress import say

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class Loss:
    """What rounding took from the adapter's change, summed over the adapted layers."""

    asked: float = 0.0  # squared norm of the change
    missed: float = 0.0  # squared norm of what the stored weights lack of it
    weights: int = 0
    still: int = 0  # weights that the change should have moved and did not

    def add(self, before: Tensor, change: Tensor, after: Tensor) -> None:
        """before, change and after are [out, in] in float32."""
        self.asked += change.double().square().sum().item()
        self.missed += (after.double() - before.double() - change.double()).square().sum().item()
        self.weights += change.numel()
        self.still += int(((after == before) & (change != 0)).sum())

    @property
    def share(self) -> float:
        """Norm of the lost part over the norm of the change."""
        return (self.missed / self.asked) ** 0.5 if self.asked else 0.0


def export(params: Params, model: str | None, adapter: Path, out: Path, dtype: str) -> Loss:
    """Write `out`: config, tokenizer and sharded safetensors under the hub's key names."""
    import torch

    if out.exists():
        raise DopsdError(f"--out {out}: it exists; name a folder that does not")
    policy = load_policy(Model(path=model or params.model.path, dtype=dtype), lora_of(adapter), 0)
    load_adapter(policy.adapted, read_adapter(adapter))
    loss = merge(policy)
    half = out.with_name(f".{out.name}.tmp")
    shutil.rmtree(half, ignore_errors=True)
    plain = policy.adapted.unload()
    plain.to(getattr(torch, dtype)).save_pretrained(half, max_shard_size="3GB")
    policy.tokenizer.save_pretrained(half)
    half.rename(out)
    say(f"export: {out} in {dtype}: {loss.share:.2%} of the adapter's change was lost to rounding, and")
    say(f"        {loss.still / loss.weights:.1%} of the adapted weights did not move at all")
    if loss.share > 0.05:
        say("        float32 would keep it: --dtype float32")
    return loss


def merge(policy: LlmPolicy) -> Loss:
    """Add the adapter into the weights in place, in their dtype; a layer at a time in float32."""
    loss = Loss()
    for _, weight, change in changes(policy.adapted):
        before = weight.data.float()
        weight.data = (before + change).to(weight.dtype)
        loss.add(before, change, weight.data.float())
    return loss
