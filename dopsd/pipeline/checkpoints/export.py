"""`dopsd export --merged --adapter FOLDER --out FOLDER`: write a trained model as one checkpoint.

AutoModelForMaskedLM.from_pretrained reads the folder after the import of the architecture's
module, such as dopsd.models.llada.architecture. The sum is taken in float32 and rounded once to
the dtype of the files. The rounding error is measured and logged. Memory holds the adapter and one
shard of the result. A checkpoint of all weights is exported without --merged.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from dopsd.core.errors import Code
from dopsd.core.progress import log
from dopsd.core.tensor_files import fsync_rename
from dopsd.models.adapter_files import has_all_weights
from dopsd.models.checkpoint_files import SHARD

if TYPE_CHECKING:
    from dopsd.models.config import ModelConfig
    from dopsd.models.merged_files import MergedModel, Rounding


def export(
    base: ModelConfig, adapter: Path | None, out: Path | None, dtype: str, is_merged: bool
) -> Rounding:
    """Write the merged model; `out` appears only when complete.

    Args:
        dtype: `float32` or `bfloat16`, the precision of the files.
        is_merged: Must be true for an adapter, and false for all weights.
    """
    is_whole = adapter is not None and has_all_weights(adapter)
    if is_whole and is_merged:
        raise Code.OPTIONS.error(f"export: {adapter} holds all weights; leave out --merged")
    if not (is_merged or is_whole) or adapter is None or out is None:
        raise Code.OPTIONS.error(
            "export: needs --merged --adapter <checkpoint folder> --out <new folder>; an adapter"
            " alone needs no export"
        )
    if os.path.lexists(out):
        raise Code.OUTPUT_EXISTS.error(
            f"--out {out}: already exists; name a new folder or remove this one"
        )
    rounding = write_merged(base, adapter, out, dtype)
    source = "adapter" if is_merged else "training"
    log(
        f"export: {out}, {dtype}: rounding error is {rounding.lost:.3%} of the {source}'s change;"
        f" {_advice(rounding, dtype)}"
    )
    return rounding


def _advice(rounding: Rounding, dtype: str) -> str:
    if dtype == "float32":
        return "equal to the trained model"
    return (
        f"{rounding.unmoved:.1%} of the trained weights did not change; --dtype float32 keeps the"
        " change"
    )


def write_merged(base: ModelConfig, adapter: Path, out: Path, dtype: str) -> Rounding:
    """Write sharded safetensors, config and tokenizer; `out` appears only when complete."""
    import torch

    from dopsd.models.merged_files import MergedModel

    merged = MergedModel(base, adapter, getattr(torch, dtype))
    tmp = out.with_name(f".{out.name}.tmp")
    shutil.rmtree(tmp, ignore_errors=True)
    tmp.mkdir(parents=True)
    try:
        _require_space(merged, tmp)
        rounding = merged.write(tmp, SHARD)
        fsync_rename(tmp, out)
    except OSError as error:
        raise Code.DISK_FULL.error(
            f"export: {out}: cannot be written ({error}); partial files removed. Free some space"
        ) from error
    finally:
        shutil.rmtree(tmp, ignore_errors=True)
    return rounding


def _require_space(merged: MergedModel, folder: Path) -> None:
    """Raise the error of a full disk before anything is written, if the tensors do not fit."""
    free = shutil.disk_usage(folder).free
    if merged.size > free:
        reason = f"needs {merged.size / 1e9:.1f} GB, {free / 1e9:.1f} GB are free"
        raise OSError(errno.ENOSPC, reason)
