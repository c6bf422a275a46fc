"""Adapter folders and checkpoints in which something is wrong, and the reading of them."""

import json
import os
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import mutate
from examples import STATE
from mutate import log_lines, put

from dopsd.models.config import AdapterConfig, ModelConfig

Call = Callable[[], object]


@cache
def policy() -> Any:
    from toys import save_toy

    from dopsd.models.llm_policy import load_policy

    save_toy(Path("base/sudoku"))
    lora = AdapterConfig(r=2, alpha=4, dropout=0.0, targets=["ff_out", "q_proj"])
    return load_policy(ModelConfig(path="base/sudoku"), lora, 0)


@cache
def adapter() -> dict[str, bytes]:
    from safetensors.torch import save_file

    from dopsd.models.adapter_files import ADAPTER
    from dopsd.models.lora import adapter_tensors, save_config

    Path("sound").mkdir(exist_ok=True)
    save_config(policy().adapted, Path("sound"))
    save_file(adapter_tensors(policy().adapted), Path("sound") / ADAPTER)
    return {name: (Path("sound") / name).read_bytes() for name in (ADAPTER, "adapter_config.json")}


def _header_changed(draw: Random, sound: bytes) -> bytes:
    """A safetensors file whose header is another JSON, its length right or not."""
    size = int.from_bytes(sound[:8], "little")
    header = mutate.swapped(draw, json.loads(sound[8 : 8 + size]))
    new = draw.choice((b"I32", b"F16", b"BF16", b"BOOL", b"U64", b"F4", b"C64", b"F32"))
    header = header.replace(b"F32", new, draw.choice((0, 1)))
    length = len(header) if draw.random() < 0.9 else draw.choice((0, 1, 2**31, 2**63, 2**64 - 1))
    return length.to_bytes(8, "little") + header + sound[8 + size :]


def _adapter_files(draw: Random, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    for name, content in adapter().items():
        kind = draw.random()
        if kind < 0.3:
            content = mutate.changed(draw, content)
        elif kind < 0.7 and name.endswith(".json"):
            content = mutate.swapped(draw, json.loads(content))
        elif kind < 0.7:
            content = _header_changed(draw, content)
        put(folder / name, content)
    if draw.random() < 0.1:
        odd = folder / draw.choice(list(adapter()))
        odd.unlink()
        kind = draw.randrange(5)
        if kind == 0:
            odd.symlink_to(odd)
        elif kind == 1:
            odd.symlink_to("/dev/zero")
        elif kind == 2:
            os.mkfifo(odd)
        elif kind == 3:
            odd.mkdir()


def adapters(draw: Random, root: str) -> Call:
    from dopsd.models.adapter_files import lora_of, read_adapter
    from dopsd.models.lora import check_config, load_adapter

    folder = Path("adapter")
    policy()
    _adapter_files(draw, folder)

    def call() -> None:
        lora_of(folder)
        weights = read_adapter(folder)
        check_config(policy().adapted, folder)
        load_adapter(policy().adapted, weights, folder)

    return call


def checkpoints(draw: Random, root: str) -> Call:
    """A training folder with two damaged checkpoints, resumed from."""
    import torch
    from safetensors.torch import save

    from dopsd.core.fingerprint import sha256
    from dopsd.training import checkpoint
    from dopsd.training.trainer_state import TrainerState
    from dopsd.training.training_folder import TrainingFolder

    scratch, is_sealed = Path("work/train-0"), draw.random() < 0.6
    policy()
    shutil.rmtree(scratch, ignore_errors=True)
    for number in ("000002", draw.choice(("000004", "000004", "abcdef", 6 * "\u00b2"))):
        folder = scratch / f"step-{number}"
        for name, content in adapter().items():
            put(folder / name, content)
        put(folder / "state.json", json.dumps(STATE).encode())
        put(folder / "trainer.safetensors", save({"ema/x": torch.zeros(2)}))
        kept = {"rng": torch.get_rng_state(), "micro_batch": torch.tensor([8, 0, 0])}
        put(folder / "batches.0.safetensors", save(kept))
        odd = folder / draw.choice(sorted(path.name for path in folder.iterdir()))
        content = odd.read_bytes()
        if is_sealed:
            if odd.suffix != ".json":
                put(odd, _header_changed(draw, content))
            else:
                is_json = draw.random() < 0.8
                put(odd, mutate.swapped(draw, json.loads(content)) if is_json else b"")
        names = {path.name: sha256(path) for path in sorted(folder.iterdir())}
        digests = json.dumps(names).encode()
        if not is_sealed:
            put(odd, mutate.changed(draw, content))
        if draw.random() < 0.5:
            others = ("../../../etc/passwd", "/etc/passwd", "a\0", "x" * 300)
            listed = names | draw.choice(({}, *({other: "0"} for other in others)))
            is_json = draw.random() < 0.7
            digests = mutate.swapped(draw, listed) if is_json else mutate.changed(draw, digests)
        put(folder / "digests.json", digests)
    put(scratch / "log.jsonl", log_lines(draw))
    accelerator = SimpleNamespace(is_main_process=True, num_processes=1, process_index=0)

    def load_state(state: TrainerState, weights: Path) -> None:
        policy().load(weights)
        torch.set_rng_state(state.rng)

    def call() -> None:
        checkpoint.checkpoints(scratch)
        TrainingFolder(scratch, accelerator).resume(load_state, every=2)

    return call
