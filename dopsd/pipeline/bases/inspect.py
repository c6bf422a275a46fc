"""`dopsd inspect`: what a base is, and whether it can be used."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from dopsd.config.profiles.layers import MODELS
from dopsd.core.errors import Code, DopsdError
from dopsd.core.files import object_in
from dopsd.core.progress import log
from dopsd.models import checkpoint_files
from dopsd.models.a2d.convert import FAMILIES, class_of, read_source, reserve_in_words
from dopsd.models.config import ModelConfig
from dopsd.models.denoiser import DenoiserConfig
from dopsd.models.loading import build_model, require_base
from dopsd.models.lora import block_modules
from dopsd.models.registry import by_class, config_of, folder_name, named
from dopsd.models.tokenizer import load_tokenizer, suppress_tokens, template_notes
from dopsd.tracking.hub import fetch_small_files, is_name

GIGA = 1e9


def inspect(base: str, block_size: int | None = None) -> None:
    """Print what a base is and whether it can be used; no weights are loaded.

    Args:
        base: a folder; or organization/name on the hub, if there is no such folder.
    """
    row = named(Path(base))
    needs = f"model.block_size={block_size}" if block_size else row.settings if row else ""
    if Path(base).exists() or not is_name(base):
        how = f"set model.path={base}" + (f" and {needs}" if needs else "")
        _inspect(Path(base), block_size, base, [], how)
        return
    log(f"inspect: there is no folder {base}; asking the hub for it")
    how = f"hf download {base} --local-dir {MODELS}/{base.rpartition('/')[2]} --exclude '*.py'"
    how += f", then set {needs}" if needs else ""
    with TemporaryDirectory() as folder:
        about = fetch_small_files(base, Path(folder))
        try:
            _inspect(Path(folder), block_size, base, about, how)
        except DopsdError as error:
            lines = [text.replace(folder, base) for text in error.lines]
            raise DopsdError(lines, error.exit_code, code=error.code) from error


def _inspect(folder: Path, block_size: int | None, name: str, about: list[str], how: str) -> None:
    if (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
        raise Code.NO_MODEL.error(
            f"{folder}: an adapter, which is no base; name the folder of its base, and the adapter"
            " with method.NAME.start_from"
        )
    if _is_source(folder):
        _print_source(folder, name, about)
        return
    if not folder.exists():
        raise Code.NO_MODEL.error(
            f"{name} (from {Path.cwd()}): no such folder or file; name a model's folder, a GGUF"
            " file, or a name on the hub"
        )
    require_base(folder)
    config = config_of(ModelConfig(path=str(folder), block_size=block_size))
    lines = [*about, *_described(config)]
    faults: list[str] = []
    for part in (_weights, _tokenizer):
        try:
            lines += part(folder, config)
        except DopsdError as error:
            faults += str(error).splitlines()
    print("\n".join([f"{name}:", *(f"  {text}" for text in lines)]))
    if faults:
        raise Code.UNSUPPORTED_MODEL.error(faults)
    print(f"  can be used: {how}")


def _is_source(path: Path) -> bool:
    """Return whether `dopsd adapt` reads it: a file, or a folder of an autoregressive class."""
    raw = object_in(path / "config.json")
    classes = by_class().keys() & set(raw.get("architectures") or [])
    return path.is_file() or (raw.get("model_type") in FAMILIES and not classes)


def _print_source(path: Path, name: str, about: list[str]) -> None:
    """Print what an autoregressive checkpoint is, a folder or a GGUF file."""
    source = read_source(path)
    count = sum(shape.numel() for shape in source.shapes.values())
    lines = [
        f"{name}:",
        *about,
        f"autoregressive {source.raw['model_type']}, {count:,} parameters: no base as it is",
        f"special tokens in reserve, for adapt.mask_token: {reserve_in_words(source.tokenizer)}",
        "`dopsd adapt` makes a base of it (dopsd's docs/adapt.md): set adapt.source, adapt.tasks"
        " and, for the result, model.path",
    ]
    config = class_of(source.raw["model_type"]).from_dict(source.raw | {"mask_token_id": 0})
    lines += [f"note: {note}" for note in template_notes(source.tokenizer, config)]
    print("\n  ".join(lines))


def _described(config: DenoiserConfig) -> list[str]:
    import torch

    sees = "every token sees every other"
    if config.block_size:
        sees = f"a token sees its block of {config.block_size} and earlier ones"
    count = sum(math.prod(shape) for shape in checkpoint_files.expected_shapes(config).values())
    with torch.device("meta"):
        layers = block_modules(build_model(config))
    return [
        f"architecture: {folder_name(config.model_type)}, {count:,} parameters, {config.n_layers}"
        f" blocks of width {config.d_model}",
        f"attention: {sees}; the state of a token predicts"
        f" {'the next one' if config.output_shift else 'the token itself'}",
        f"longest text: {config.max_sequence_length:,} tokens, vocabulary of"
        f" {config.embedding_size:,}",
        f"layers for LoRA: {', '.join(layers)}",
    ]


def _weights(folder: Path, config: DenoiserConfig) -> list[str]:
    checkpoint_files.check_folder(folder, config)
    checkpoint_files.check_repeated(folder, config)
    paths, dtypes = list(checkpoint_files.weight_files(folder)), Counter[str]()
    for path in paths:
        dtypes.update(checkpoint_files.header_dtypes(path).values())
    size = sum(path.stat().st_size for path in paths) / GIGA
    count = f"{len(paths)} file" + "s" * (len(paths) > 1)
    return [f"weights: {size:.3g} GB in {count}, {' and '.join(sorted(dtypes))}"]


def _tokenizer(folder: Path, config: DenoiserConfig) -> list[str]:
    tokenizer = load_tokenizer(folder, config)
    suppress_tokens(tokenizer, config)
    mask, end = map(
        str, tokenizer.convert_ids_to_tokens([config.mask_token_id, config.eos_token_id])
    )
    return [
        f"tokens: {len(tokenizer):,}, mask {mask} ({config.mask_token_id}), end of text {end}"
        f" ({config.eos_token_id})",
        *(f"note: {note}" for note in template_notes(tokenizer, config)),
    ]
