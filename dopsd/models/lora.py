"""LoRA adapters through peft.

Targets are checked against the model's module names; saved files hold no paths of this machine.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from peft import (
    LoraConfig,
    PeftModel,
    get_peft_model,
    get_peft_model_state_dict,
    set_peft_model_state_dict,
)
from peft.tuners.lora import Linear
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint

from dopsd.core.errors import Code
from dopsd.models.adapter_files import NESTED_TARGETS, TARGETS, check_shape, target_names

if TYPE_CHECKING:
    from dopsd.models.config import AdapterConfig
    from dopsd.models.denoiser import Denoiser

PREFIX = "base_model.model."  # of the base's names in peft's files
NESTED = 2  # dots in the path of a layer in a part of a block: 3.self_attn.q_proj
NO_LAYER = "match no layer of the model; it has"
EXPERTS = "names layers of experts, which get no adapters; there are"


def block_modules(model: Denoiser) -> list[str]:
    """Return the names of the layers that LoRA may adapt: linear ones in blocks, not of experts."""
    return sorted(_layers(model, is_expert=False) - _layers(model, is_expert=True))


def _layers(model: Denoiser, is_expert: bool) -> set[str]:
    """Return the names of the linear layers of experts, or of all others in the blocks."""
    paths = [name for name, m in model.blocks().named_modules() if isinstance(m, nn.Linear)]
    return {path.rpartition(".")[2] for path in paths if (path.count(".") > NESTED) is is_expert}


def _blocks_name(model: Denoiser) -> str:
    """Return the model's name for its list of blocks: `blocks`, `layers`."""
    blocks = model.blocks()
    path: str = next(name for name, m in model.named_modules() if m is blocks)
    return path.rpartition(".")[2]


def attach(model: Denoiser, lora: AdapterConfig, seed: int) -> PeftModel:
    """Return a peft model with a fresh adapter; B = 0, so that it starts as the base."""
    names = block_modules(model)
    unknown = sorted(set(lora.targets) - set(names))
    if unknown:
        are_experts = _layers(model, is_expert=True).issuperset(unknown)
        problem = EXPERTS if are_experts else NO_LAYER
        raise Code.LORA_TARGETS.error(
            f"lora.targets: {', '.join(unknown)} {problem} {', '.join(names)}"
        )
    children = {name for name, _ in model.blocks()[0].named_children()}
    pattern = TARGETS if children.issuperset(lora.targets) else NESTED_TARGETS
    config = LoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=pattern.format(_blocks_name(model), "|".join(sorted(lora.targets))),
        base_model_name_or_path="base",
    )
    # peft's hook for other layer classes; saved files do not record it
    config._register_custom_module({nn.Linear: LowRankLinear})
    # peft draws on the host, so no generator of a GPU is saved or seeded
    with torch.random.fork_rng([]), warnings.catch_warnings():
        # peft reads an attribute that transformers has renamed
        warnings.simplefilter("ignore", FutureWarning)
        torch.default_generator.manual_seed(seed)
        # peft would write the path on this machine into every adapter
        model.name_or_path = "base"
        adapted = get_peft_model(model, config)
    if not isinstance(adapted, PeftModel):  # peft has another class for mixed adapters
        raise TypeError(f"peft made a {type(adapted).__name__}")
    return adapted


def recompute_dropout(peft_model: nn.Module, is_recomputing: bool) -> None:
    """Set whether adapters compute dropout again for the backward pass."""
    for module in peft_model.modules():
        if isinstance(module, LowRankLinear):
            module.recomputes_dropout = is_recomputing


@contextmanager
def without_adapters(peft_model: nn.Module) -> Iterator[None]:
    """Compute with the base alone while the context lasts.

    peft's own `disable_adapter` also looks through the whole model for its state, which costs the
    host of a GPU as much as some layers.
    """
    layers = [module for module in peft_model.modules() if isinstance(module, BaseTunerLayer)]
    before = [layer.disable_adapters for layer in layers]
    try:
        for layer in layers:
            layer._disable_adapters = True
        yield
    finally:
        for layer, was_off in zip(layers, before, strict=True):
            layer._disable_adapters = was_off


def require_adapter(adapted: PeftModel | None, folder: Path) -> PeftModel:
    """Return the model with its adapter, which is to take that of a folder."""
    if adapted is None:
        raise Code.ADAPTER_MISFIT.error(
            f"{folder}: an adapter, and the model has none; set train.weights to lora"
        )
    return adapted


def _state(peft_model: PeftModel) -> dict[str, Tensor]:
    """Return the weights of the adapter where they are, by the names of peft's files."""
    # save_embedding_layers="auto" would look for the base's folder
    state: dict[str, Tensor] = get_peft_model_state_dict(peft_model, save_embedding_layers=False)
    return dict(sorted(state.items()))


def adapter_tensors(peft_model: PeftModel) -> dict[str, Tensor]:
    """Return the weights of the adapter on the CPU, by the names of peft's files."""
    return {name: t.detach().cpu().contiguous() for name, t in _state(peft_model).items()}


def save_config(peft_model: PeftModel, folder: Path) -> None:
    """Write adapter_config.json as peft does; `attach` has named the base "base", not by a path."""
    peft_model.peft_config["default"].save_pretrained(str(folder))


def check_config(peft_model: PeftModel, folder: Path) -> None:
    """Refuse an adapter that was trained with another rank, scaling or list of targets.

    Its weights might load all the same, with another result.
    """
    config: Any = peft_model.peft_config["default"]  # a LoraConfig, as `attach` made it
    check_shape(folder, config.r, config.lora_alpha, target_names(config.target_modules))


def load_adapter(
    peft_model: PeftModel, tensors: dict[str, Tensor], source: object = "adapter"
) -> None:
    """Load saved weights into the adapter, or refuse them as `check_adapter` does."""
    check_adapter(peft_model, tensors, source)
    set_peft_model_state_dict(peft_model, tensors)


def check_adapter(
    peft_model: PeftModel, tensors: dict[str, Tensor], source: object = "adapter"
) -> None:
    """Refuse weights that do not fit the adapter; the model may be on the meta device."""
    expected = {name: list(tensor.shape) for name, tensor in _state(peft_model).items()}
    actual = {name: list(tensor.shape) for name, tensor in tensors.items()}
    mismatched = sorted(
        name for name in expected | actual if expected.get(name) != actual.get(name)
    )
    if mismatched:
        example = (
            f"{mismatched[0]!r} is {actual.get(mismatched[0], 'missing')}, "
            f"expected {expected.get(mismatched[0], 'none')}"
        )
        raise Code.ADAPTER_MISFIT.error(
            f"{source}: {len(mismatched)} tensors do not fit this base and LoRA config ({example});"
            " use the base and train.lora of its training"
        )
    nonfinite = [
        name
        for name, tensor in tensors.items()
        if not (tensor.is_floating_point() and tensor.float().isfinite().all())
    ]
    if nonfinite:
        raise Code.ADAPTER_DAMAGED.error(
            f"{source}: {len(nonfinite)} tensors are not finite ({nonfinite[0]!r}); restore the"
            " file"
        )


class LowRankLinear(Linear):
    """Compute W x + scale * B (A x), with the sum in the accumulator of the last product.

    Adapters are kept in float32 and multiplied in the dtype of their inputs, as under autocast: the
    rounding of B A x is below that of the sum.
    """

    # whether dropout is computed again for the backward pass, which saves 2 bytes of each number
    # instead of 5 on a GPU; adapters of one input share them
    recomputes_dropout = False

    def forward(self, x: Tensor, *args: object, **kwargs: object) -> Tensor:
        """Map x [..., in] to [..., out]."""
        output: Tensor = self.base_layer(x)
        if self.disable_adapters:
            return output
        (name,) = self.active_adapters
        layers: tuple[Any, Any] = self.lora_A[name], self.lora_B[name]  # each a torch.nn.Linear
        down, up = layers[0].weight, layers[1].weight
        low = self._dropped(x, self.lora_dropout[name], down).flatten(0, -2).to(output.dtype)
        rows, up = output.flatten(0, -2), up.to(output.dtype).T
        # in place unless gradients are needed, which saves a copy of W x
        add = torch.addmm if torch.is_grad_enabled() else Tensor.addmm_
        return add(rows, low, up, alpha=self.scaling[name]).view_as(output)

    def _dropped(self, x: Tensor, dropout: nn.Module, down: Tensor) -> Tensor:
        """Return A x after dropout; x is [..., in]."""

        def product(x: Tensor) -> Tensor:
            return linear(dropout(x), down.to(x.dtype))

        is_random = isinstance(dropout, nn.Dropout) and dropout.training
        is_kept = not self.recomputes_dropout or torch.compiler.is_compiling()
        if is_kept or not (is_random and torch.is_grad_enabled()):
            return product(x)
        low: Tensor = checkpoint(product, x, use_reentrant=False)  # draws the same numbers again
        return low
