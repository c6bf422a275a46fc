"""`dopsd export --merged --adapter runs/sudoku/d_opsd/0/best --out merged`: base and adapter as one
plain checkpoint.

The folder is read by AutoModelForMaskedLM.from_pretrained after `import dopsd.models.llada`. The
sum is taken in float32 and rounded once to the dtype that is written; what the rounding costs is
measured and said.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dopsd.core.errors import DopsdError
from dopsd.core.progress import log
from dopsd.core.tensor_files import fsync_rename
from dopsd.models.adapter_config import lora_of
from dopsd.models.adapter_files import read_adapter
from dopsd.models.config import ModelConfig
from dopsd.models.llm_policy import LlmPolicy, load_policy
from dopsd.models.lora import adapted_layers, load_adapter, require_adapter

if TYPE_CHECKING:
    from pathlib import Path

    import torch

SHARD = "5GB"  # as the hub's own; what is written at a time is copied once more in memory


@dataclass(frozen=True)
class Rounding:
    """What writing W + D in a dtype costs: |round(W + D) - W - D| / |D|, and the share of weights
    that did not move.

    `lost` passes 1 where the base is stored in a wider dtype and its own rounding is larger than
    the change.
    """

    lost: float
    unmoved: float


def export(
    base: str, adapter: Path | None, out: Path | None, dtype: str, is_merged: bool
) -> Rounding:
    """Write the merged model to `out`, which must not exist; needs host memory for one float32 copy
    of the model.
    """
    if not is_merged or adapter is None or out is None:
        raise DopsdError(
            "export: give --merged --adapter <checkpoint folder> --out <new folder>; an adapter is"
            " one already"
        )
    if out.exists():
        raise DopsdError(f"--out {out}: is there already; name a new folder or remove it")
    policy = adapted_policy(base, adapter)
    rounding = merge(policy, dtype)
    write(policy, out)
    log(
        f"export: {out}, {dtype}: rounding is off by {rounding.lost:.3%} of the adapter's change;"
        f" {_advice(rounding, dtype)}"
    )
    return rounding


def _advice(rounding: Rounding, dtype: str) -> str:
    if dtype == "float32":
        return "this is the adapted model"
    return (
        f"{rounding.unmoved:.1%} of the adapted weights did not change at all; --dtype float32"
        " keeps the change"
    )


def adapted_policy(base: str, adapter: Path) -> LlmPolicy:
    """The unquantised base in float32, on the CPU whatever there is, with the adapter in place."""
    import torch

    lora, tensors = lora_of(adapter), read_adapter(adapter)
    policy = load_policy(ModelConfig(path=base, dtype="float32"), lora, 0, torch.device("cpu"))
    load_adapter(require_adapter(policy.adapted), tensors, adapter)
    return policy


def merge(policy: LlmPolicy, dtype: str) -> Rounding:
    """Add the adapter into the weights, layer by layer, and round them all to `dtype` in place."""
    import torch

    torch_dtype: torch.dtype = getattr(torch, dtype)
    lost = changed = 0.0
    unmoved = count = 0
    for layer, change in adapted_layers(require_adapter(policy.adapted)):
        old = layer.weight.data  # [out, in]
        new = (old + change).to(torch_dtype)
        wide = new.double()  # so that only the rounding to `dtype` and that of the sum is measured
        lost += (wide - old.double() - change.double()).square().sum().item()
        changed += change.double().square().sum().item()
        unmoved += int((new == old.to(torch_dtype)).sum())
        count += new.numel()
        layer.weight.data = new
    for p in policy.core.parameters():
        p.data = p.data.to(torch_dtype)
    return Rounding((lost / changed) ** 0.5 if changed else 0.0, unmoved / count)


def write(policy: LlmPolicy, out: Path) -> None:
    """Sharded safetensors, config and tokenizer, under a temporary name until they are whole."""
    from safetensors import SafetensorError

    tmp = out.with_name(f".{out.name}.tmp")
    shutil.rmtree(tmp, ignore_errors=True)
    tmp.mkdir(parents=True)
    try:
        require_adapter(policy.adapted).unload().save_pretrained(tmp, max_shard_size=SHARD)
        policy.tokenizer.save_pretrained(tmp)
        fsync_rename(tmp, out)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(tmp, ignore_errors=True)
        raise DopsdError(
            f"export: {out} could not be written ({error}); nothing is left of it. Free some space"
        ) from error
