"""LoRA adapters through peft: targets checked against the model's real module names, saved without machine paths."""

from __future__ import annotations

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


def load_adapter(peft_model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Put saved weights in place; every name must be there."""
    from peft import set_peft_model_state_dict

    expected = set(adapter_tensors(peft_model))
    if set(tensors) != expected:
        odd = sorted(set(tensors) ^ expected)[:3]
        raise DopsdError(f"adapter: its tensors are not those of this LoRA config (first differences: {', '.join(odd)})")
    set_peft_model_state_dict(peft_model, tensors)
