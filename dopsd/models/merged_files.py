"""Write a trained model as one folder, with one shard of the result in memory at a time.

The tensors are those that transformers would write of the model merged in memory: W + scale * B A
in float32, or the weights of a checkpoint that holds all, rounded once to the dtype of the files.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from transformers.core_model_loading import dot_natural_key

from dopsd.core.errors import Code
from dopsd.models import checkpoint_files
from dopsd.models.adapter_files import check_shards, read_adapter, shape_of
from dopsd.models.loading import build_model, require_base
from dopsd.models.lora import PREFIX, attach, check_adapter, without_adapters
from dopsd.models.registry import config_of
from dopsd.models.tokenizer import load_tokenizer, suppress_tokens

if TYPE_CHECKING:
    from dopsd.models.config import ModelConfig


@dataclass
class Rounding:
    """Error of writing weights W plus their change D in a dtype, summed over the trained layers."""

    squared_error: float = 0.0  # |round(W + D) - W - D|^2
    squared_change: float = 0.0  # |D|^2
    equal: int = 0  # trained weights that did not change
    count: int = 0  # trained weights

    def add(self, old: Tensor, change: Tensor, new: Tensor) -> None:
        """Count one layer; in float64, since the measurement itself must not round."""
        self.squared_error += new.double().sub_(old).sub_(change).square_().sum().item()
        self.squared_change += change.double().square_().sum().item()
        self.equal += int((new == old.to(new.dtype)).sum())
        self.count += new.numel()

    @property
    def lost(self) -> float:
        """|round(W + D) - W - D| / |D|; above 1 where rounding W costs more than the change."""
        if not self.squared_change:
            return 0.0
        return math.sqrt(self.squared_error / self.squared_change)

    @property
    def unmoved(self) -> float:
        """Share of the trained weights that did not change."""
        return self.equal / self.count


class MergedModel:
    """A base with an adapter added into its weights, or with all of them replaced, by the tensor.

    Args:
        adapter: folder of the checkpoint: an adapter, or all weights.
        dtype: precision of the parameters in the files.
    """

    def __init__(self, model: ModelConfig, adapter: Path, dtype: torch.dtype) -> None:
        lora, base = shape_of(adapter), Path(model.path)
        require_base(base)
        config = config_of(model)
        checkpoint_files.check_folder(base, config)
        self.base, self.files, self.rounding = base, checkpoint_files.file_of(base), Rounding()
        self.tokenizer = load_tokenizer(base, config)
        suppress_tokens(self.tokenizer, config)  # refuses the tokenizer of another checkpoint
        with torch.device("meta"):  # names and shapes only
            self.model = build_model(config)
            self.shapes, self.count = self._shapes(dtype), self.model.num_parameters()
            adapted = attach(self.model, lora, 0) if lora else None
        self.changes, self.scalings, self.trained = {}, {}, {}
        if adapted:
            self.changes, self.scalings = read_adapter(adapter), scalings(adapted)
            check_adapter(adapted, self.changes, adapter)
        else:
            check_shards(adapter)
            checkpoint_files.check_folder(adapter, config)
            self.trained = checkpoint_files.file_of(adapter)

    def _shapes(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return the tensors of the files, without values, in transformers' order.

        Of tied weights only the first is written.
        """
        parameters, tensors = dict(self.model.named_parameters()), self.model.state_dict()
        names = tensors.keys() - self.model.all_tied_weights_keys.keys()
        return {
            name: tensors[name].to(dtype) if name in parameters else tensors[name]
            for name in sorted(names, key=dot_natural_key)
        }

    @property
    def size(self) -> int:
        """Bytes of all tensors in the files."""
        return sum(tensor.nbytes for tensor in self.shapes.values())

    def tensor(self, name: str) -> Tensor:
        """Read a tensor of the base, add its change or take the trained one, and round."""
        weight = checkpoint_files.read_tensor(self.files[name], name)
        checkpoint_files.check_finite([(name, weight)], self.base)
        layer, dtype, old = name.removesuffix(".weight"), self.shapes[name].dtype, weight.float()
        if self.trained:
            trained = checkpoint_files.read_tensor(self.trained[name], name)
            checkpoint_files.check_finite([(name, trained)], self.trained[name].parent)
            new, change = trained.to(dtype), trained.float() - old
        elif layer in self.scalings:
            down, up = (self.changes[f"{PREFIX}{layer}.lora_{which}.weight"] for which in "AB")
            change = low_rank_change(down, up, self.scalings[layer])
            new = (old + change).to(dtype)
        else:
            return weight.to(dtype)
        self.rounding.add(old, change, new)
        return new

    def write(self, folder: Path, shard: str) -> Rounding:
        """Write shards, index, config and tokenizer into an existing folder.

        Args:
            shard: the largest size of a file, such as 5GB; a larger tensor gets its own.

        Returns:
            The error of rounding, summed over the trained layers.

        Raises:
            OSError: if the disk is full or a file cannot be written.
        """
        plan = checkpoint_files.write_shards(self.shapes, self.tensor, folder, shard)
        if plan.is_sharded:
            checkpoint_files.write_index(plan, folder, total_parameters=self.count)
        checkpoint_files.write_config(self.model, next(iter(self.shapes.values())).dtype, folder)
        self.tokenizer.save_pretrained(folder)
        if self.model.can_generate():
            self.model.generation_config.save_pretrained(folder)
        return self.rounding


def low_rank_change(down: Tensor, up: Tensor, scaling: float) -> Tensor:
    """Return scale * B A [out, in] in float32 of A (down) [r, in] and B (up) [out, r]."""
    return (up.float() @ down.float()) * scaling


def _lora_layers(peft_model: PeftModel) -> Iterator[tuple[str, LoraLayer]]:
    """Yield the adapted layers with their names in the base."""
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
    """
    originals: list[tuple[nn.Linear, Tensor]] = []
    try:
        for layer, change in adapted_layers(peft_model):
            if not layer.weight.is_floating_point():
                raise Code.MERGING.error(
                    "merged: adapters cannot be added into nf4 weights; set model.quantization to"
                    " none"
                )
            originals.append((layer, layer.weight.data))
            layer.weight.data = (layer.weight.data.float() + change).to(layer.weight.dtype)
        with without_adapters(peft_model):
            yield
    finally:
        for layer, original in originals:
            layer.weight.data = original
