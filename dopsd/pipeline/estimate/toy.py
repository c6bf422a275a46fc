"""Toy version of a profile: a tiny random model, and settings that take seconds."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dopsd.core.progress import log
from dopsd.training.run_settings import PHASES

if TYPE_CHECKING:
    from dopsd.config.params import Params

PROBLEMS = 4  # of each split
BLOCKS = 3  # of a completion, at most
FEW = {
    "attempts": 2,
    "keep": "all",
    "group_size": 2,
    "iterations": 2,
    "draws": 2,
    "tries": 1,
    "updates_per_trajectory": 2,
    "updates_per_pass": 2,
}
TOY = {"path": "toy", "dtype": "float32", "quantization": "none", "attention": "sdpa"}
TOY |= {"kernels": "torch"}
SOURCE = "toy-source"  # of a base that is to be adapted


def build_toy(base: Path, out: Path) -> None:
    """Write a tiny random model with the base's architecture and tokenizer.

    Args:
        base: Base model folder; if absent, the tokens of the toy are characters, and it is of the
            kind of the published base of that name, or a LLaDA.
    """
    import torch

    from dopsd.models.loading import build_model
    from dopsd.models.registry import config_class, named, read_config
    from dopsd.models.text import build_tokenizer
    from dopsd.training.pretraining.pretrain import initialise

    if (base / "tokenizer.json").is_file() and (base / "config.json").is_file():
        from dopsd.models.tokenizer import load_tokenizer

        config = read_config(base)
        tokenizer = load_tokenizer(base, config)
    else:
        tokenizer = build_tokenizer()
        ids = {"mask_token_id": tokenizer.mask_token_id, "eos_token_id": tokenizer.eos_token_id}
        size = dict.fromkeys(("vocab_size", "embedding_size"), len(tokenizer))
        size["pad_token_id"] = tokenizer.pad_token_id
        row = named(base)
        shape = (row.shape if row else None) or {}
        config = config_class(row.architecture if row else "llada")(**shape | ids | size)
        log(f"rehearse: {base}: no tokenizer there; using single characters as tokens")
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = build_model(config.toy())
        initialise(model)
        model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def small(raw: dict[str, Any], full: Params, processes: int) -> dict[str, Any]:
    """Return the settings with sizes that take seconds.

    Paths become absolute, since the rehearsal runs in a folder of its own.
    """
    raw = deepcopy(raw)
    raw["evaluate"].pop("watch", None)  # other tasks teach nothing about whether this one runs
    for task in full.matrix.tasks:
        overrides = full.data.tasks[task].model  # all but what the toy sets itself
        model = overrides.model_dump(exclude_none=True, exclude=set(TOY)) if overrides else None
        raw["data"][task] = _absolute(raw["data"][task]) | {"limit": PROBLEMS, "model": model}
    raw["matrix"]["seeds"] = raw["matrix"]["seeds"][:1]
    raw["model"] |= TOY
    for section in (raw["sampling"], *raw["evaluate"]["protocols"].values()):
        _shorten(section, full.model.block_size or 1)
    for method in raw["method"].values():
        method |= {key: value for key, value in FEW.items() if key in method}
        if "train" in method:  # sizes are those of section train below
            method["train"] |= dict.fromkeys(("updates", "prompts_per_collect", "lora"))
    raw["train"] |= {
        "updates": 2,
        "prompts_per_collect": max(2, processes),
        "checkpoint_every": 1,
        "micro_batch_states": 8,
    }
    raw["train"]["lora"] |= {"r": 4, "alpha": 4}
    if full.adapt.tasks:
        sizes = {"updates": 2, "prompts_per_collect": max(2, processes), "checkpoint_every": 1}
        raw["adapt"] |= {"source": SOURCE}
        for name in map(PHASES.__getitem__, full.adapt.phases):
            phase = _absolute(raw["adapt"].get(name) or {})
            phase |= {"train": (phase.get("train") or {}) | sizes}
            raw["adapt"][name] = phase
            if name == "learn":  # chats cannot be cut, as they are left out
                length = phase.get("length") or full.sampling.gen_length
                phase["length"] = length if phase.get("traces") else None
    raw["evaluate"]["bootstrap"] = 100
    return raw | {
        "launch": {"processes": processes, "shard": full.launch.shard and processes > 1},
        "tracking": raw["tracking"] | {"enabled": False, "also": []},
    }


def _shorten(section: dict[str, Any], block_size: int) -> None:
    """Shorten a protocol to at most BLOCKS blocks, with the same number of tokens per step."""
    length = min(section["gen_length"], BLOCKS * max(section["block_length"], block_size))
    section["steps"] = length * section["steps"] // section["gen_length"]
    section |= {"gen_length": length, "batch_size": 8}


def _absolute(value: Any) -> Any:  # noqa: ANN401  # any YAML value
    """Return a value whose names of existing files are absolute."""
    if isinstance(value, dict):
        return {key: _absolute(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_absolute(item) for item in value]
    return (
        str(Path(value).resolve())
        if isinstance(value, str) and value and Path(value).is_file()
        else value
    )
