"""LoRA adapters through peft: targets checked against the model's real module names, saved without machine paths."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dopsd.errors import DopsdError

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedModel

    from dopsd.config import Lora


def block_modules(model: PreTrainedModel) -> list[str]:
    """Names of the linear layers inside the blocks: what LoRA may adapt. The head is not among them."""
    from torch import nn

    trunk = {name.split(".")[-1] for name, m in model.named_modules() if isinstance(m, nn.Linear) and ".blocks." in name}
    return sorted(trunk)


def attach(model: PreTrainedModel, lora: Lora, seed: int) -> nn.Module:
    """A peft model with a fresh adapter (B = 0, so that it starts as the base)."""
    import warnings

    import torch
    from peft import LoraConfig, get_peft_model

    names = block_modules(model)
    unknown = sorted(set(lora.targets) - set(names))
    if unknown:
        raise DopsdError(f"lora.targets: {', '.join(unknown)} match no layer of the model; it has {', '.join(names)}")
    config = LoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=rf".*\.blocks\.\d+\.({'|'.join(sorted(lora.targets))})",
        base_model_name_or_path="base",
    )
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft reads an attribute that transformers has renamed
        torch.manual_seed(seed)
        model.name_or_path = "base"  # by role: peft would write this machine's path into every adapter
        return get_peft_model(model, config)


def adapter_tensors(peft_model: nn.Module) -> dict[str, Tensor]:
    """The adapter's weights under peft's own file names."""
    from peft import get_peft_model_state_dict

    state = get_peft_model_state_dict(peft_model, save_embedding_layers=False)
    return {name: tensor.detach().cpu().contiguous() for name, tensor in sorted(state.items())}


def save_config(peft_model: nn.Module, folder: Path) -> None:
    """adapter_config.json as peft writes it, with the base named by role, not by a path of this machine."""
    peft_model.peft_config["default"].save_pretrained(str(folder))


def check_config(peft_model: nn.Module, folder: Path) -> None:
    """Refuse an adapter that was trained with another scaling or other targets: its weights would load all the same."""
    saved, config = lora_of(folder), peft_model.peft_config["default"]
    ours = {"r": config.r, "alpha": config.lora_alpha, "targets": _names(config.target_modules)}
    odd = [
        f"{name} {vars(saved)[name]} (train.lora gives {value})" for name, value in ours.items() if vars(saved)[name] != value
    ]
    if odd:
        raise DopsdError(f"{folder}: the adapter was trained with {', '.join(odd)}; set train.lora to what it was")


def _names(targets: str | list[str]) -> list[str]:
    """Layer names out of the pattern that `attach` writes, or of the list that other tools do."""
    return sorted(re.findall(r"\w+", targets.rpartition("(")[2]) if isinstance(targets, str) else targets)


def lora_of(folder: Path) -> Lora:
    """The settings that an adapter was trained with, from its adapter_config.json."""
    from dopsd.config import Lora

    try:
        saved = json.loads((folder / "adapter_config.json").read_text())
        shape = {"r": saved["r"], "alpha": saved["lora_alpha"], "dropout": float(saved["lora_dropout"])}
        return Lora(**shape, targets=_names(saved["target_modules"]))
    except OSError as error:
        raise DopsdError(f"{folder}: no adapter_config.json; expected a checkpoint folder of `dopsd train`") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DopsdError(f"{folder}/adapter_config.json: not a LoRA config of peft ({type(error).__name__})") from error


def changes(peft_model: nn.Module) -> Iterator[tuple[str, nn.Parameter, Tensor]]:
    """Each adapted layer's name, its frozen weight W [out, in] and the adapter's change scale x B A in float32."""
    from peft.tuners.lora import LoraLayer

    for name, layer in peft_model.named_modules():
        if isinstance(layer, LoraLayer):
            a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
            change = layer.scaling["default"] * (b.float() @ a.float())
            yield name.removeprefix("base_model.model."), layer.get_base_layer().weight, change.detach()


@contextmanager
def merged(peft_model: nn.Module) -> Iterator[None]:
    """Weights W + change, rounded to their dtype, adapters off; afterwards the old weights, bit for bit.

    Subtracting the change again would not give them back in bfloat16, so they are kept.
    """
    found = list(changes(peft_model))
    if any(not weight.is_floating_point() for _, weight, _ in found):
        raise DopsdError("merged: 4-bit weights cannot take an adapter; set model.quantization to none with it")
    kept = [(weight, weight.data) for _, weight, _ in found]
    try:
        for _, weight, change in found:
            weight.data = (weight.data.float() + change).to(weight.dtype)
        with peft_model.disable_adapter():
            yield
    finally:
        for weight, old in kept:
            weight.data = old


def load_adapter(peft_model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Put saved weights in place; every name must be there."""
    from peft import set_peft_model_state_dict

    expected = {(name, tensor.shape) for name, tensor in adapter_tensors(peft_model).items()}
    odd = sorted({name for name, _ in {(n, t.shape) for n, t in tensors.items()} ^ expected})[:3]
    if odd:
        raise DopsdError(f"adapter: its tensors are not those of this LoRA config (first differences: {', '.join(odd)})")
    set_peft_model_state_dict(peft_model, tensors)
