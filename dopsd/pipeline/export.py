"""`dopsd export --merged --adapter FOLDER --out FOLDER`: write base and adapter as one checkpoint.

AutoModelForMaskedLM.from_pretrained reads the folder after `import dopsd.models.llada`. The sum is
taken in float32 and rounded once to the dtype of the files. The rounding error is measured and
logged.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dopsd.core.error_codes import Code
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

SHARD = "5GB"  # as on the hub; a shard is copied once in memory while it is written


@dataclass(frozen=True)
class Rounding:
    """Error of writing weights W plus adapter change D in a dtype.

    Attributes:
        lost: |round(W + D) - W - D| / |D|; above 1 where rounding W costs more than the change.
        unmoved: Share of the adapted weights that did not change.
    """

    lost: float
    unmoved: float


def export(
    base: str, adapter: Path | None, out: Path | None, dtype: str, is_merged: bool
) -> Rounding:
    """Write the merged model; needs host memory for one float32 copy of the model.

    Args:
        base: Base model folder.
        adapter: Checkpoint folder.
        out: Folder to write, which must not exist.
        dtype: `float32` or `bfloat16`, the precision of the files.
        is_merged: Must be true: there is no other kind of export.

    Raises:
        DopsdError: if an argument is missing, `out` exists, or the disk is full.
    """
    if not is_merged or adapter is None or out is None:
        raise DopsdError(
            "export: needs --merged --adapter <checkpoint folder> --out <new folder>; an adapter"
            " alone needs no export",
            code=Code.OPTIONS,
        )
    if out.exists():
        raise DopsdError(
            f"--out {out}: already exists; name a new folder or remove this one",
            code=Code.OUTPUT_EXISTS,
        )
    policy = adapted_policy(base, adapter)
    rounding = merge(policy, dtype)
    write(policy, out)
    log(
        f"export: {out}, {dtype}: rounding error is {rounding.lost:.3%} of the adapter's change;"
        f" {_advice(rounding, dtype)}"
    )
    return rounding


def _advice(rounding: Rounding, dtype: str) -> str:
    if dtype == "float32":
        return "equal to the adapted model"
    return (
        f"{rounding.unmoved:.1%} of the adapted weights did not change; --dtype float32 keeps the"
        " change"
    )


def adapted_policy(base: str, adapter: Path) -> LlmPolicy:
    """Load the unquantised base in float32 on the CPU, with the adapter in place."""
    import torch

    lora, tensors = lora_of(adapter), read_adapter(adapter)
    policy = load_policy(ModelConfig(path=base, dtype="float32"), lora, 0, torch.device("cpu"))
    load_adapter(require_adapter(policy.adapted), tensors, adapter)
    return policy


def merge(policy: LlmPolicy, dtype: str) -> Rounding:
    """Add the adapter into the weights, and round all of them to `dtype`, in place."""
    import torch

    torch_dtype: torch.dtype = getattr(torch, dtype)
    lost = changed = 0.0
    unmoved = count = 0
    for layer, change in adapted_layers(require_adapter(policy.adapted)):
        old = layer.weight.data  # [out, in]
        new = (old + change).to(torch_dtype)
        wide = new.double()  # the measurement itself must not round
        lost += (wide - old.double() - change.double()).square().sum().item()
        changed += change.double().square().sum().item()
        unmoved += int((new == old.to(torch_dtype)).sum())
        count += new.numel()
        layer.weight.data = new
    for p in policy.core.parameters():
        p.data = p.data.to(torch_dtype)
    return Rounding((lost / changed) ** 0.5 if changed else 0.0, unmoved / count)


def write(policy: LlmPolicy, out: Path) -> None:
    """Write sharded safetensors, config and tokenizer; `out` appears only when complete.

    Raises:
        DopsdError: if the disk is full or a file cannot be written.
    """
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
            f"export: {out}: cannot be written ({error}); partial files removed. Free some space",
            code=Code.DISK_FULL,
        ) from error
