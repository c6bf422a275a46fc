"""The start of adapting: an autoregressive model as a diffusion model, before it has learnt."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dopsd.core.files import WORK, digest
from dopsd.core.fingerprint import folder_of, recipe
from dopsd.core.progress import log

if TYPE_CHECKING:
    from dopsd.models.a2d.convert import Form
    from dopsd.training.pretraining.config import AdaptConfig
    from dopsd.training.run_settings import RunSettings


def converted_folder(adapt: AdaptConfig) -> Path:
    """Return the folder of the converted model, named by the source's files, its form and the code.

    Files count by size and time; another copy of them is converted again, to the same bytes.
    """
    source = Path(adapt.source or "")
    files = sorted(source.glob("*")) if source.is_dir() else [source]
    stats = [(f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in files if f.is_file()]
    form = adapt.model_dump(include={"source", "output_shift", "mask_token", "dtype"})
    code = recipe(folder_of("dopsd.models"))
    identity: dict[str, Any] = form | {"files": stats, "code": code}
    return WORK / f"adapt-{digest(identity)[:16]}"


def last_checkpoint(run: RunSettings) -> Path:
    """Return the folder of the checkpoint after the last update of a run."""
    from dopsd.training.run_identity import identify

    return identify(run).folder / f"step-{run.train.updates:06d}"


def form_of(adapt: AdaptConfig) -> Form:
    """Return what the converted model is to be."""
    import torch

    from dopsd.models.a2d.convert import Form

    return Form(adapt.output_shift, adapt.mask_token, getattr(torch, adapt.dtype))


def require_converted(adapt: AdaptConfig) -> Path:
    """Return the folder of the converted model, after converting it if need be."""
    folder = converted_folder(adapt)
    if not folder.is_dir():
        from dopsd.models.a2d.convert import convert

        count = convert(Path(adapt.source or ""), folder, form_of(adapt))
        log(f"adapt: {adapt.source}: {count:,} weights, converted into {folder}")
    return folder
