"""An adapted linear layer that adds its update in one matrix product.

peft computes a product, a scaling and a sum instead.
"""

from __future__ import annotations

from typing import Any

import torch
from peft.tuners.lora import Linear
from torch import Tensor
from torch.nn.functional import linear


class LowRankLinear(Linear):
    """Compute W x + scale * B (A x), with the sum in the accumulator of the last product.

    Adapters are kept in float32 and multiplied in the dtype of their inputs, as under autocast: the
    rounding of B A x is below that of the sum.
    """

    def forward(self, x: Tensor, *args: object, **kwargs: object) -> Tensor:
        """Map x [..., in] to [..., out]."""
        output: Tensor = self.base_layer(x)
        if self.disable_adapters:
            return output
        (name,) = self.active_adapters
        layers: tuple[Any, Any] = self.lora_A[name], self.lora_B[name]  # each a torch.nn.Linear
        down, up = layers[0].weight, layers[1].weight
        low = linear(self.lora_dropout[name](x), down.to(x.dtype)).flatten(0, -2).to(output.dtype)
        rows, up = output.flatten(0, -2), up.to(output.dtype).T
        # in place unless gradients are needed, which saves a copy of W x
        add = torch.addmm if torch.is_grad_enabled() else Tensor.addmm_
        return add(rows, low, up, alpha=self.scaling[name]).view_as(output)
