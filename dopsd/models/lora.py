"""LoRA adapters through peft: targets checked against the model's real module names, saved without machine paths."""

from __future__ import annotations

import json
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

    state = get_peft_model_state_dict(peft_model)
    return {name: tensor.detach().cpu().contiguous() for name, tensor in sorted(state.items())}


def save_config(peft_model: nn.Module, folder: Path) -> None:
    """adapter_config.json as peft writes it, with the base named by role, not by a path of this machine."""
    peft_model.peft_config["default"].save_pretrained(str(folder))


def check_config(peft_model: nn.Module, folder: Path) -> None:
    """Refuse an adapter that was trained with another scaling or other targets: its weights would load all the same."""
    saved = json.loads((folder / "adapter_config.json").read_text())
    config = peft_model.peft_config["default"]
    ours = {"r": config.r, "lora_alpha": config.lora_alpha, "target_modules": config.target_modules}
    odd = [f"{name} {saved.get(name)} (train.lora gives {value})" for name, value in ours.items() if saved.get(name) != value]
    if odd:
        raise DopsdError(f"{folder}: the adapter was trained with {', '.join(odd)}; set train.lora to what it was")


def load_adapter(peft_model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Put saved weights in place; every name must be there."""
    from peft import set_peft_model_state_dict

    expected = {(name, tensor.shape) for name, tensor in adapter_tensors(peft_model).items()}
    odd = sorted({name for name, _ in {(n, t.shape) for n, t in tensors.items()} ^ expected})[:3]
    if odd:
        raise DopsdError(f"adapter: its tensors are not those of this LoRA config (first differences: {', '.join(odd)})")
    set_peft_model_state_dict(peft_model, tensors)
