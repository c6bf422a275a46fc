"""An adapted linear layer that adds its update in one matrix product.

peft computes a product, a scaling and a sum instead.
"""

from __future__ import annotations

from typing import Any

import torch
from peft.tuners.lora import Linear
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint


class LowRankLinear(Linear):
    """Compute W x + scale * B (A x), with the sum in the accumulator of the last product.

    Adapters are kept in float32 and multiplied in the dtype of their inputs, as under autocast: the
    rounding of B A x is below that of the sum.

    Attributes:
        recomputes_dropout: whether dropout is computed again for the backward pass, which saves 2
            bytes of each number instead of 5 on a GPU; adapters of one input share them.
    """

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
