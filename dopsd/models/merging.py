"""Add an adapter's change scale * B A to the weights of its base, in memory."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError
from dopsd.models.lora import PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from peft import PeftModel
    from peft.tuners.lora import LoraLayer
    from torch import Tensor, nn


def low_rank_change(down: Tensor, up: Tensor, scaling: float) -> Tensor:
    """Return scale * B A [out, in] in float32 of A (down) [r, in] and B (up) [out, r]."""
    return (up.float() @ down.float()) * scaling


def _lora_layers(peft_model: PeftModel) -> Iterator[tuple[str, LoraLayer]]:
    """Yield the adapted layers with their names in the base."""
    from peft.tuners.lora import LoraLayer

    for name, module in peft_model.named_modules():
        if isinstance(module, LoraLayer):
            yield name.removeprefix(PREFIX), module


def scalings(peft_model: PeftModel) -> dict[str, float]:
    """Return the scale of each adapted layer's change, by the layer's name in the base."""
    return {name: layer.scaling["default"] for name, layer in _lora_layers(peft_model)}


def adapted_layers(peft_model: PeftModel) -> Iterator[tuple[nn.Linear, Tensor]]:
    """Yield every adapted base layer with its change scale * B A [out, in] in float32."""
    for _, module in _lora_layers(peft_model):
        down = module.lora_A["default"].get_parameter("weight").detach()
        up = module.lora_B["default"].get_parameter("weight").detach()
        layer: Any = module.get_base_layer()  # a Linear: block_modules names no other layers
        yield layer, low_rank_change(down, up, module.scaling["default"])


@contextmanager
def merged_weights(peft_model: PeftModel) -> Iterator[None]:
    """Add the adapters into the weights, rounded to the model's dtype, while the context lasts.

    The original weights are kept and put back, because subtracting the change would not restore
    their bits. This takes a second copy of the adapted weights.

    Raises:
        DopsdError: if the weights are nf4.
    """
    originals: list[tuple[nn.Linear, Tensor]] = []
    try:
        for layer, change in adapted_layers(peft_model):
            if not layer.weight.is_floating_point():
                raise DopsdError(
                    "merged: adapters cannot be added into nf4 weights; set model.quantization to"
                    " none",
                    code=Code.MERGING,
                )
            originals.append((layer, layer.weight.data))
            layer.weight.data = (layer.weight.data.float() + change).to(layer.weight.dtype)
        with peft_model.disable_adapter():
            yield
    finally:
        for layer, original in originals:
            layer.weight.data = original
