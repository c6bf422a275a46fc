"""An adapted linear layer with one matrix product for adding, where peft has a product, a scaling
and a sum.
"""

from __future__ import annotations

from typing import Any

import torch
from peft.tuners.lora import Linear
from torch import Tensor
from torch.nn.functional import linear


class LowRankLinear(Linear):
    """W x + scale * B (A x), the sum in the last product's own accumulator. x [..., in] -> [...,
    out].

    Adapters are kept in float32 and multiplied in the dtype of their inputs, as under autocast:
    beside the rounding of the sum that of B A x does not show.
    """

    def forward(self, x: Tensor, *args: object, **kwargs: object) -> Tensor:
        output: Tensor = self.base_layer(x)
        if self.disable_adapters:
            return output
        (name,) = self.active_adapters
        layers: tuple[Any, Any] = self.lora_A[name], self.lora_B[name]  # each a torch.nn.Linear
        down, up = layers[0].weight, layers[1].weight
        low = linear(self.lora_dropout[name](x), down.to(x.dtype)).flatten(0, -2).to(output.dtype)
        rows, up = output.flatten(0, -2), up.to(output.dtype).T
        add = (
            torch.addmm if torch.is_grad_enabled() else Tensor.addmm_
        )  # in place there is no copy of W x
        return add(rows, low, up, alpha=self.scaling[name]).view_as(output)
