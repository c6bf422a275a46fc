"""`dopsd models` and `dopsd inspect`: which bases there are, and whether one can be used."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from dopsd.algorithms.registry import ALGORITHMS, blocks_fault
from dopsd.analysis.tables import head, line, print_markdown
from dopsd.config.profiles.layers import MODELS
from dopsd.core.errors import Code, DopsdError
from dopsd.core.files import object_in
from dopsd.core.progress import log
from dopsd.models.a2d.convert import FAMILIES, class_of, read_source, reserve_in_words
from dopsd.models.checkpoint_files import (
    check_folder,
    check_repeated,
    expected_shapes,
    header_dtypes,
    weight_files,
)
from dopsd.models.config import ModelConfig
from dopsd.models.denoiser import DenoiserConfig
from dopsd.models.loading import build_model, require_base
from dopsd.models.lora import block_modules
from dopsd.models.registry import (
    ARCHITECTURES,
    by_class,
    config_class,
    config_of,
    folder_name,
    named,
    published,
)
from dopsd.models.tokenizer import load_tokenizer, suppress_tokens, template_notes
from dopsd.tracking.hub import fetch, is_name

GIGA = 1e9
NOTE = (
    "None of the published weights was run by this project: the classes are compared with forward"
    " passes written out by hand. Licences are those of the weights; read the model card before you"
    " use one. `dopsd inspect NAME` looks at one on the hub, and prints the command that downloads"
    " it."
)


def checkpoints_table() -> list[str]:
    """Return the checkpoints that can be a base, as a table."""
    columns = ("checkpoint", "architecture", "parameters", "GB in bfloat16", "licence", "needs")
    lines = head(*columns, "blocks counted from")
    for row in published():
        size = "not known" if row.parameters is None else f"{row.parameters / GIGA:.2g} B"
        weight = "not known" if row.gigabytes is None else f"{row.gigabytes:g}"
        needs = f"`{row.settings}`" if row.settings else ""
        needs = f"not published: `{row.made_by}` makes it" if row.made_by else needs
        lines.append(line(row.name, row.architecture, size, weight, row.licence, needs, row.blocks))
    return lines


def architectures_table() -> list[str]:
    """Return what each architecture supports, as a table."""
    columns = ("architecture", "a token sees", "predicts", "cache", "flash attention")
    more = ("fused kernels", "shard, compile, 4-bit", "methods")
    return [*head(*columns, *more), *map(_supports, ARCHITECTURES.names)]


def list_bases() -> None:
    """Print the checkpoints that can be a base, and what each architecture supports."""
    print_markdown("\n".join([*checkpoints_table(), "", *architectures_table(), "", NOTE, ""]))


def _supports(name: str) -> str:
    kind = config_class(name)
    sees = {"bidirectional": "every token", "block_causal": "its block and earlier ones"}
    cache = {"bidirectional": "approximate", "block_causal": "exact"}
    patterns = kind.attention_patterns
    return line(
        name,
        " or ".join(sees[pattern] for pattern in patterns),
        _predicts(kind),
        " or ".join(cache[pattern] for pattern in patterns),
        "yes" if "bidirectional" in patterns else "no",
        "yes" if kind.has_fused_kernels else "no",
        "yes",  # of every architecture
        "all" if "bidirectional" in patterns else f"all; {_with_settings()}",
    )


def _predicts(kind: type[DenoiserConfig]) -> str:
    if "output_shift" in kind.in_file:
        return "its own token or the next"
    return "the next token" if kind.output_shift else "its own token"


def _with_settings() -> str:
    """Return which methods need other settings than their defaults under block-causal attention."""
    configs = {name: ALGORITHMS.config_class(name)() for name in ALGORITHMS.names}
    names = [name for name, config in configs.items() if blocks_fault(name, config)]
    return f"other settings for {', '.join(names)}"


def inspect(base: str, block_size: int | None = None) -> None:
    """Print what a base is and whether it can be used; no weights are loaded.

    Args:
        base: a folder; or organization/name on the hub, if there is no such folder.
        block_size: as model.block_size.

    Raises:
        DopsdError: with every fault, if it cannot be used.
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
        about = fetch(base, Path(folder))
        try:
            _inspect(Path(folder), block_size, base, about, how)
        except DopsdError as error:
            lines = [text.replace(folder, base) for text in error.lines]
            raise DopsdError(lines, error.exit_code, code=error.code) from error


def _inspect(folder: Path, block_size: int | None, name: str, about: list[str], how: str) -> None:
    if (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
        raise DopsdError(
            f"{folder}: an adapter, which is no base; name the folder of its base, and the adapter"
            " with method.NAME.start_from",
            code=Code.NO_MODEL,
        )
    if _is_source(folder):
        _print_source(folder, name, about)
        return
    if not folder.exists():
        raise DopsdError(
            f"{name} (from {Path.cwd()}): no such folder or file; name a model's folder, a GGUF"
            " file, or a name on the hub",
            code=Code.NO_MODEL,
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
        raise DopsdError(faults, code=Code.UNSUPPORTED_MODEL)
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
    count = sum(math.prod(shape) for shape in expected_shapes(config).values())
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
    check_folder(folder, config)
    check_repeated(folder, config)
    paths, dtypes = list(weight_files(folder)), Counter[str]()
    for path in paths:
        dtypes.update(header_dtypes(path).values())
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
