"""Write an autoregressive checkpoint as a masked diffusion model, before it has learnt to denoise.

The weights stay; config and tokenizer get a mask, and the mask a row of the embedding: an unused
one if there is one, else a new one. It begins as the mean of all tokens' rows.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from dopsd.core.errors import Code, DopsdError
from dopsd.core.progress import log
from dopsd.core.tensor_files import fsync_rename
from dopsd.models import checkpoint_files
from dopsd.models.a2d.gguf import GgufFile
from dopsd.models.common.decoder_config import TOY, DecoderConfig
from dopsd.models.denoiser import DenoiserConfig
from dopsd.models.loading import build_model
from dopsd.models.registry import ODD, config_class, folder_name, read_config
from dopsd.models.template_date import without_clock
from dopsd.models.tokenizer import rendering, suppress_tokens

DOWNLOAD = "; correct the path, or get one: `hf download NAME --local-dir models/NAME`"
ROOM = "a2d"  # model_type llama becomes a2d-llama
SHOWN = 20  # special tokens in reserve
FAMILIES = ("llama", "qwen2", "qwen3")
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
LEFT_OUT = {  # fields of config.json about the autoregressive class and its file
    *("architectures", "auto_map", "torch_dtype", "dtype", "transformers_version", "use_cache"),
    *("_name_or_path", "_attn_implementation_autoset", "transformers.js_config"),
}


@dataclass(frozen=True)
class Form:
    """How the diffusion model predicts, and how its files hold it."""

    output_shift: int  # 1: the state at position i predicts token i + 1, as before; 0: token i
    # text of the mask, a special token of the tokenizer or a new one; None: the family's
    mask_token: str | None
    dtype: torch.dtype  # of the files


@dataclass(frozen=True)
class _Source:
    """An autoregressive checkpoint: fields of config.json, tensors by name, and the tokenizer."""

    path: Path
    raw: dict[str, Any]
    shapes: dict[str, Tensor]  # without values
    tensor: Callable[[str], Tensor]
    tokenizer: PreTrainedTokenizerBase


def convert(path: Path, out: Path, form: Form) -> int:
    """Write config.json, the weights and the tokenizer of the diffusion model; replace the folder.

    Args:
        path: a folder in the hub's layout, or a GGUF file.

    Returns:
        The number of weights.
    """
    source = read_source(path)
    raw = _config(source, form)
    new = out.with_name(f"{out.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    (new / "config.json").write_text(json.dumps(raw, indent=2) + "\n", encoding="utf-8")
    suppress_tokens(source.tokenizer, read_config(new))  # refuses what does not fit
    count = _write_weights(source, new, raw, form.dtype)
    named = source.tokenizer.chat_template  # one, or several by name
    source.tokenizer.chat_template = (
        {name: without_clock(text) for name, text in named.items()}
        if isinstance(named, dict)
        else without_clock(str(named))
    )
    source.tokenizer.save_pretrained(new)
    shutil.rmtree(out, ignore_errors=True)
    fsync_rename(new, out)
    return count


def converted_parts(path: Path, form: Form) -> tuple[DenoiserConfig, PreTrainedTokenizerBase]:
    """Return config and tokenizer that `convert` would write, without reading weights."""
    source = read_source(path)
    raw = _config(source, form)
    kind = class_of(raw["model_type"].removeprefix(f"{ROOM}-"))
    return kind.from_dict(raw), source.tokenizer


def read_source(path: Path) -> _Source:
    """Open a checkpoint; its weights are read later, one by one."""
    if path.is_file():
        file = GgufFile(path)
        shapes = {
            name: torch.empty([int(n) for n in reversed(found.shape)], device="meta")
            for name, found in file.tensors.items()
        }
        return _Source(path, file.config(), shapes, file.tensor, file.tokenizer())
    try:
        raw = json.loads((path / "config.json").read_bytes())
        kind = raw["model_type"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        why = error.strerror if isinstance(error, OSError) else " ".join(str(error).split())[:100]
        raise Code.NO_MODEL.error(
            f"adapt.source: {path} (from {Path.cwd()}): no checkpoint folder and no GGUF file"
            f" (config.json: {why}){DOWNLOAD}"
        ) from error
    if kind not in FAMILIES:
        raise Code.UNSUPPORTED_MODEL.error(
            f"{path}/config.json: model_type {kind!r} cannot be adapted; those that can are"
            f" {', '.join(FAMILIES)}"
        )
    fields = {name: value for name, value in raw.items() if name not in LEFT_OUT}
    try:
        class_of(kind).check(fields | {"mask_token_id": 0, "eos_token_id": 0})
    except DopsdError as error:
        raise DopsdError(f"{path}/{error}", code=error.code) from error
    return _of_folder(path, fields)


def class_of(model_type: str) -> type[DecoderConfig]:
    """Return the config class that an autoregressive model_type becomes."""
    kind = config_class(folder_name(f"{ROOM}-{model_type}"))
    assert issubclass(kind, DecoderConfig)
    return kind


def _of_folder(path: Path, raw: dict[str, Any]) -> _Source:
    from transformers import AutoTokenizer

    files = checkpoint_files.file_of(path)
    if not (path / "tokenizer.json").is_file():
        raise Code.TOKENIZER.error(
            f"{path}: no tokenizer.json; copy it and tokenizer_config.json into the folder"
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            path, local_files_only=True, trust_remote_code=False
        )
    except ODD as error:
        reason = " ".join(str(error).split())[:120]
        raise Code.TOKENIZER.error(
            f"{path}: cannot read a tokenizer ({reason}); copy tokenizer.json and"
            " tokenizer_config.json into the folder"
        ) from error

    if tokenizer.chat_template is None:
        raise Code.TOKENIZER.error(
            f"{path}: the tokenizer has no chat template, by which prompts are written; add"
            " chat_template to tokenizer_config.json, or take the instruct version"
        )
    shapes = {
        name: torch.empty(shape, device="meta")
        for file in set(files.values())
        for name, shape in checkpoint_files.header(file).items()
    }
    if raw.get("tie_word_embeddings") and shapes.pop(HEAD, None) is not None:
        checkpoint_files.check_copy(
            path, files, HEAD, EMBEDDING
        )  # some files hold the embedding twice
    raw = {"tie_word_embeddings": False} | raw
    return _Source(
        path, raw, shapes, lambda name: checkpoint_files.read_tensor(files[name], name), tokenizer
    )


def _config(source: _Source, form: Form) -> dict[str, Any]:
    """Return config.json, after giving the tokenizer its mask."""
    tokenizer, kind = source.tokenizer, class_of(source.raw["model_type"])
    mask = form.mask_token or kind.mask_token
    rows = source.shapes[EMBEDDING].shape[0]
    if tokenizer.vocab_size > rows:  # without added tokens, such as one for padding
        raise Code.TOKENIZER.error(
            f"{source.path}: the tokenizer has {tokenizer.vocab_size} tokens, and the model {rows}"
            " rows; copy the model's own tokenizer into the folder"
        )
    _refuse_mask(tokenizer, mask, form.mask_token is not None)
    tokenizer.add_special_tokens({"mask_token": mask})
    mask_id, eos_id = tokenizer.mask_token_id, tokenizer.eos_token_id
    if eos_id is None:
        raise Code.TOKENIZER.error(
            f"{source.path}: the tokenizer names no end of text (eos_token), which ends and pads"
            " answers; name it in tokenizer_config.json"
        )
    raw = source.raw | {
        "model_type": kind.model_type,
        "architectures": [f"{kind.__name__.removesuffix('Config')}ForMaskedLM"],
        "output_shift": form.output_shift,
        "mask_token": mask,
        "mask_token_id": mask_id,
        "eos_token_id": eos_id,
        "end_of_turn": tokenizer.eos_token,
        "vocab_size": max(rows, mask_id + 1),
        "tie_word_embeddings": bool(source.raw.get("tie_word_embeddings", False)),
    }
    _refuse_misfits(source, raw)
    return raw


def _refuse_mask(tokenizer: PreTrainedTokenizerBase, mask: str, is_named: bool) -> None:
    """Refuse a mask that stands in chats, or means something else; say if a named one is new."""
    number, added = tokenizer.get_vocab().get(mask), tokenizer.added_tokens_decoder
    names = reserve_in_words(tokenizer)
    if number is not None and mask not in in_reserve(tokenizer):
        use = "in use" if number in added else "an ordinary token, which texts hold"
        raise Code.TOKENIZER.error(
            f"adapt.mask_token: {mask} is {use}; name a special token in reserve ({names}), or null"
            " for a new one"
        )
    if number is None and mask.replace("_", "").isalnum():
        raise Code.TOKENIZER.error(
            f"adapt.mask_token: {mask} would stand for a word of texts; name one such as <|mask|>,"
            f" or a special token in reserve ({names})"
        )
    if number is None and is_named:
        log(
            f"note: adapt.mask_token: {mask} becomes a new token; the tokenizer has in reserve:"
            f" {names}"
        )


def reserve_in_words(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the special tokens in reserve as text."""
    free = in_reserve(tokenizer)
    more = f" and {len(free) - SHOWN} more" if len(free) > SHOWN else ""
    return ", ".join(free[:SHOWN]) + more or "none"


def in_reserve(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return the special tokens that can become the mask: no chat and no role has them."""
    chat = [{"role": role, "content": "a"} for role in ("user", "assistant")]
    with rendering(tokenizer.name_or_path):
        text = str(tokenizer.apply_chat_template(chat, tokenize=False))
    roles = {tokenizer.eos_token, tokenizer.bos_token, tokenizer.unk_token, tokenizer.pad_token}
    special = [t.content for t in tokenizer.added_tokens_decoder.values() if t.special]
    return [token for token in special if token not in roles and token not in text]


def _refuse_misfits(source: _Source, raw: dict[str, Any]) -> None:
    """Refuse tensors that are not those of the model that config.json describes."""
    config = class_of(source.raw["model_type"]).from_dict(raw)
    with torch.device("meta"):
        expected = checkpoint_files.whole_tensors(build_model(config))
    found = {name: tuple(shape.shape) for name, shape in source.shapes.items()}
    for name, tensor in expected.items():
        shape = tuple(tensor.shape)
        own = found.pop(name, None)
        rows = (own or (0,))[:1] if name in (EMBEDDING, HEAD) else shape[:1]
        if own is None or own != (*rows, *shape[1:]):
            raise Code.WEIGHTS.error(
                f"{source.path}: {name} is {own or 'missing'}, and config.json makes it {shape};"
                " download the checkpoint again"
            )
    if found:
        raise Code.WEIGHTS.error(f"{source.path}: has {min(found)}, which this model has not")


def _write_weights(source: _Source, out: Path, raw: dict[str, Any], dtype: torch.dtype) -> int:
    size, mask = raw["vocab_size"], raw["mask_token_id"]

    def shape_of(name: str, shape: Tensor) -> Tensor:
        rows = size if name in (EMBEDDING, HEAD) else shape.shape[0]
        return torch.empty((rows, *shape.shape[1:]), dtype=dtype, device="meta")

    def tensor(name: str) -> Tensor:
        values = source.tensor(name)
        checkpoint_files.check_finite([(name, values)], source.path)
        if name in (EMBEDDING, HEAD):
            values = with_mask(values, size, mask, len(source.tokenizer))
        return values.to(dtype)

    shapes = {name: shape_of(name, shape) for name, shape in source.shapes.items()}
    plan = checkpoint_files.write_shards(shapes, tensor, out, checkpoint_files.SHARD)
    if plan.is_sharded:
        checkpoint_files.write_index(plan, out)
    return sum(shape.numel() for shape in shapes.values())


def with_mask(rows: Tensor, size: int, mask: int, tokens: int) -> Tensor:
    """Return an embedding or a head [size, D] with the mean of its tokens' rows for the mask.

    Args:
        rows: [V, D]; those after the last token count for nothing.
        size: rows of the result, V or V + 1.
        tokens: tokens of the tokenizer, with the mask.
    """
    counts = torch.arange(len(rows)) < tokens
    counts[mask : mask + 1] = False
    new = torch.cat([rows, rows.new_zeros(size - len(rows), rows.shape[1])])
    new[mask] = rows[counts].float().mean(0).to(rows.dtype)
    return new


def write_tiny(path: Path, out: Path) -> None:
    """Write a tiny random autoregressive model of a checkpoint's family, with its tokenizer."""
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    source = read_source(path)
    fields = {name: value for name, value in source.raw.items() if name != "layer_types"}
    config = CONFIG_MAPPING[source.raw["model_type"]].from_dict(fields | TOY)
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(out)
    source.tokenizer.save_pretrained(out)
