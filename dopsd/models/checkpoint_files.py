"""Files of a base or of all weights: which they are, and whether they fit their config.

Every tensor must be there, in its shape, and no other; this is known before any weight is loaded.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import StateDictSplit, split_torch_state_dict_into_shards
from safetensors import SafetensorError, safe_open

from dopsd.core.errors import Code
from dopsd.core.fingerprint import sha256
from dopsd.core.paths import ADAPTED, ORIGIN
from dopsd.core.tensor_files import save_tensors

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import PretrainedConfig

    from dopsd.models.config import ModelConfig
    from dopsd.models.denoiser import Denoiser, DenoiserConfig

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
AGAIN = "download it again"
SAME = "take config.json and the weights from the same checkpoint"
FLOATS = {"F64", "F32", "F16", "BF16"}  # safetensors' names
SHOWN = 3  # names of tensors that a message lists
Shapes = dict[str, tuple[int, ...]]  # shapes of tensors by name


def check_folder(folder: Path, config: DenoiserConfig) -> None:
    """Compare the headers of the weight files with the tensors that the config needs."""
    expected, repeated = expected_shapes(config), config.repeated_tensors()
    found: Shapes = {}
    faults: list[str] = []
    for path, indexed_names in weight_files(folder).items():
        shapes, dtypes = header(path), header_dtypes(path)
        if indexed_names is not None:
            listed = f"missing, though {INDEX} lists them"
            faults += _fault(path, listed, indexed_names - set(shapes))
            faults += _fault(path, f"not listed in {INDEX}", set(shapes) - indexed_names)
        expected |= {name: expected[first] for name, first in repeated.items() if name in shapes}
        faults += _fault(path, "unknown to config.json", set(shapes) - set(expected), SAME)
        known = {name: shape for name, shape in shapes.items() if name in expected}
        other = {name for name, shape in known.items() if shape != expected[name]}
        example = next(iter(sorted(other)), "")
        sizes = (
            f" (first: {list(known[example])}, config.json gives {list(expected[example])})"
            if other
            else ""
        )
        faults += _fault(path, f"of another shape{sizes}", other, SAME)
        quantised = {name for name in known if dtypes[name] not in FLOATS}
        kinds = ", ".join(sorted({dtypes[name] for name in quantised}))
        advice = "take the checkpoint that was not quantised"
        faults += _fault(path, f"no floating-point numbers ({kinds})", quantised, advice)
        found |= shapes
    faults += _fault(folder, "missing", set(expected) - set(found))
    if faults:
        raise Code.WEIGHTS.error(faults)


def expected_shapes(config: PretrainedConfig) -> Shapes:
    """Return names and shapes of the tensors that a checkpoint of this config has."""
    import torch
    from transformers import AutoModelForMaskedLM

    with torch.device("meta"):
        model = AutoModelForMaskedLM.from_config(config)
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def weight_files(folder: Path) -> Mapping[Path, set[str] | None]:
    """Return the weight files with the tensors in each; None: one file without an index."""
    if (folder / WHOLE).is_file():
        return {folder / WHOLE: None}
    if not (folder / INDEX).is_file():
        pickle_names = sorted(path.name for path in folder.glob("*.bin"))
        problem = (
            f"only {pickle_names[0]}, and pickle files are not loaded; convert the weights to"
            if pickle_names
            else "no weights; expected"
        )
        raise Code.WEIGHTS.error(f"{folder}: {problem} {WHOLE}, or shards with {INDEX}")
    files: dict[Path, set[str]] = {}
    try:
        index = json.loads((folder / INDEX).read_bytes())
        for name, file in index["weight_map"].items():
            files.setdefault(folder / Path(file).name, set()).add(name)
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise Code.WEIGHTS.error(
            f"{folder / INDEX}: not a whole index file ({error}); {AGAIN}"
        ) from error
    for path, names in files.items():
        if not path.is_file():
            _refuse(path, f"missing with this file, which {INDEX} lists", names)
    return files


def header(path: Path) -> Shapes:
    """Return names and shapes of the tensors in a safetensors file, without loading them."""
    with _opened(path) as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118


def header_dtypes(path: Path) -> dict[str, str]:
    """Return the dtypes of the tensors in a safetensors file, by safetensors' names."""
    with _opened(path) as file:
        return {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a safetensors file, and say in one line where it is damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise Code.WEIGHTS.error(
            f"{path}: not a whole safetensors file ({error}); restore the file, or {AGAIN}"
        ) from error


def file_of(folder: Path) -> dict[str, Path]:
    """Return the weight file of each tensor, by the tensor's name."""
    return {name: path for path in weight_files(folder) for name in header(path)}


def read_tensor(path: Path, name: str) -> Tensor:
    """Read one tensor of a weight file, which is open only for that time."""
    with _opened(path) as file:
        tensor: Tensor = file.get_tensor(name)
    return tensor


def file_tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor of the weight files with its name, one at a time."""
    for name, path in file_of(folder).items():
        yield name, read_tensor(path, name)


def check_repeated(folder: Path, config: DenoiserConfig) -> None:
    """Refuse files whose second copy of tied weights differs from the first."""
    files = file_of(folder)
    for name, first in config.repeated_tensors().items():
        if name in files:
            check_copy(folder, files, name, first)


def check_copy(folder: Path, files: Mapping[str, Path], name: str, first: str) -> None:
    """Refuse a second copy of tied weights that differs from the first, but for its rounding."""
    copy, tensor = read_tensor(files[name], name), read_tensor(files[first], first)
    check_finite([(name, copy), (first, tensor)], folder)
    if not (_is_rounded(copy, tensor) or _is_rounded(tensor, copy)):
        raise Code.WEIGHTS.error(
            f"{folder}: {name} differs from {first}, though config.json ties them; set"
            " tie_word_embeddings to false there if the model has a head of its own"
        )


def _is_rounded(tensor: Tensor, other: Tensor) -> bool:
    import torch

    return torch.equal(tensor, other.to(tensor.dtype))


def check_finite(tensors: Iterable[tuple[str, Tensor]], folder: Path) -> None:
    """Refuse weights with infinities or NaN.

    The minimum and maximum of each tensor are enough, and need no copy.
    """
    nonfinite = {name for name, t in tensors if t.is_floating_point() and not _is_finite(t)}
    _refuse(folder, "not finite (NaN or infinite)", nonfinite)


def _is_finite(tensor: Tensor) -> bool:
    import torch

    return bool(torch.stack(torch.aminmax(tensor.detach())).isfinite().all())


def _refuse(path: Path, problem: str, names: set[str] | None) -> None:
    """Raise the fault of these tensors, unless there are none."""
    if faults := _fault(path, problem, names or set()):
        raise Code.WEIGHTS.error(faults)


def _fault(path: Path, problem: str, names: set[str], advice: str = AGAIN) -> list[str]:
    """Return a line with the first SHOWN names and their number; none without names."""
    if not names:
        return []
    count = f"{len(names)} tensor{'s' if len(names) > 1 else ''}"
    preview = ", ".join(sorted(names)[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
    return [f"{path}: {count} {problem}: {preview}; {advice}"]


PATTERN = "model{suffix}.safetensors"
SHARD = "5GB"  # as on the hub


def write_shards(
    shapes: Mapping[str, Tensor], tensor: Callable[[str], Tensor], folder: Path, size: str
) -> StateDictSplit:
    """Write tensors into files of a folder, with one file's tensors in memory at a time.

    Args:
        shapes: the tensors by name; they may be without values.
        size: the largest size of a file, such as 5GB; a larger tensor gets its own.

    Returns:
        Which file has which tensors.

    Raises:
        OSError: if the disk is full or a file cannot be written.
    """
    plan = split_torch_state_dict_into_shards(
        dict(shapes), filename_pattern=PATTERN, max_shard_size=size
    )
    for file, names in plan.filename_to_tensors.items():
        save_tensors({name: tensor(name) for name in names}, folder / file, {"format": "pt"})
    return plan


def write_index(plan: StateDictSplit, folder: Path, **metadata: object) -> None:
    """Write the index of shards, as transformers does, with more metadata."""
    index = {"metadata": plan.metadata | metadata, "weight_map": plan.tensor_to_filename}
    (folder / INDEX).write_text(
        json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8"
    )


def write_config(model: Denoiser, dtype: torch.dtype, folder: Path) -> None:
    """Write config.json of a model whose files have this dtype."""
    config = deepcopy(model.config)
    config.dtype, config.architectures = dtype, [type(model).__name__]
    config.save_pretrained(folder)


def save_whole(model: Denoiser, weights: Mapping[str, Tensor], folder: Path) -> None:
    """Write a checkpoint of all weights.

    Args:
        weights: its tensors by name, on any device.

    Raises:
        OSError: if the disk is full or a file cannot be written.
    """
    plan = write_shards(weights, weights.__getitem__, folder, SHARD)
    digests = {file: sha256(folder / file) for file in plan.filename_to_tensors}
    write_index(plan, folder, **{SHARDS: digests})
    write_config(model, next(iter(weights.values())).dtype, folder)


def whole_tensors(model: Denoiser) -> dict[str, Tensor]:
    """Return the tensors that files of a model hold: of tied weights only the first."""
    tensors = model.state_dict()
    return {name: t for name, t in tensors.items() if name not in model.all_tied_weights_keys}


def file_values(model: Denoiser, folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor of a folder's weights, which fit the model and are finite."""
    check_folder(folder, model.config)
    repeated = model.config.repeated_tensors()
    for name, path in file_of(folder).items():
        if name in repeated:
            continue
        tensor = read_tensor(path, name)
        check_finite([(name, tensor)], folder)
        yield name, tensor


SHARDS = "sha256"  # key of the index' metadata: the digest of each shard


def base_files(model: ModelConfig) -> list[Path]:
    """Return the files that define the base: weights, config, tokenizer and template.

    A change in any of them makes another model.
    """
    return sorted(
        path
        for path in Path(model.path).glob("*")
        if path.is_file() and path.name not in (ADAPTED, ORIGIN)
    )


def base_digest(model: ModelConfig) -> str:
    """Return 16 hex digits of the base's files, which identify it on any device."""
    names = "\n".join(f"{path.name} {sha256(path)}" for path in base_files(model))
    return hashlib.sha256(names.encode()).hexdigest()[:16]


def parameters(files: Iterable[Path]) -> int:
    """Return the number of values in the safetensors files among these."""
    weights = [path for path in files if path.suffix == ".safetensors" and path.is_file()]
    return sum(math.prod(shape) for path in weights for shape in header(path).values())
