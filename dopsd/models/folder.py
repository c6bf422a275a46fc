"""A checkpoint folder, read strictly: every tensor that the config asks for, none besides, of its shape, and finite.

The safetensors headers are compared before any weight is read: transformers would fill a missing tensor with noise.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from dopsd.errors import DopsdError

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PretrainedConfig

INDEX, WHOLE = "model.safetensors.index.json", "model.safetensors"
SHOWN = 3  # names in a message


def check_folder(folder: Path, config: PretrainedConfig) -> None:
    """Raise DopsdError where names or shapes of the stored tensors are not those of the config's model."""
    expected, found = expected_shapes(config), stored_shapes(folder)
    missing, extra = expected.keys() - found.keys(), found.keys() - expected.keys()
    odd = {n for n in expected.keys() & found.keys() if expected[n] != found[n]}
    shapes = [f"{n} {list(found[n])} (config.json gives {list(expected[n])})" for n in sorted(odd)]
    faults = [_named("missing tensors", missing), _named("tensors that this model does not have", extra)]
    faults.append(_named("tensors of another shape", shapes))
    if any(faults):
        raise DopsdError(f"model.path {folder}: {'; '.join(filter(None, faults))}; download or copy the folder again")


def check_finite(folder: str, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Raise DopsdError for weights with NaN or infinity: a copy that went wrong loads without complaint."""
    bad = [name for name, tensor in tensors if tensor.is_floating_point() and not bool(tensor.isfinite().all())]
    if bad:
        raise DopsdError(
            f"model.path {folder}: {_named('tensors with NaN or infinity', bad)}; download or copy the folder again"
        )


def _named(what: str, names: Iterable[str]) -> str:
    names = sorted(names)
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{what} ({len(names)}): {', '.join(names[:SHOWN])}{more}" if names else ""


def expected_shapes(config: PretrainedConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the model's tensors, without making any."""
    import torch
    from transformers import AutoModelForMaskedLM

    with torch.device("meta"):
        model = AutoModelForMaskedLM.from_config(config)
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def stored_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes from the headers of the folder's safetensors files."""
    found: dict[str, tuple[int, ...]] = {}
    for path in _files(folder):
        found |= _header(folder, path)
    return found


def _files(folder: Path) -> list[Path]:
    if (folder / INDEX).is_file():
        try:
            named = json.loads((folder / INDEX).read_text())["weight_map"].values()
        except (ValueError, KeyError, AttributeError) as error:
            raise DopsdError(f"model.path {folder}: {INDEX} is damaged; download or copy it again") from error
        files = sorted({folder / name for name in named})
    elif (folder / WHOLE).is_file():
        files = [folder / WHOLE]
    else:
        other = " (.bin and .pt files are not read: they can run code)" if [*folder.glob("*.bin"), *folder.glob("*.pt")] else ""
        raise DopsdError(f"model.path {folder}: no {WHOLE} or {INDEX}{other}; expected a checkpoint in safetensors")
    absent = [path.name for path in files if not path.is_file()]
    if absent:
        raise DopsdError(f"model.path {folder}: {_named('missing files', absent)}; download or copy the folder again")
    return files


def _header(folder: Path, path: Path) -> dict[str, tuple[int, ...]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as tensors:
            return {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise DopsdError(f"model.path {folder}: {path.name} is damaged ({error}); download or copy it again") from error
