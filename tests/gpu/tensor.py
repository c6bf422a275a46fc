"""A tensor that says `cuda:0`; inside is one of the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch


class GpuTensor(torch.Tensor):
    """A tensor of the pretended device; `inner` has its values, on the CPU."""

    inner: torch.Tensor
    run: Callable[..., Any]  # how the device in use runs an operator; set by the device

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> GpuTensor:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            layout=inner.layout,
            device=torch.device("cuda", torch.cuda.current_device()),
        )
        made.inner = inner
        return made

    def __init__(self, inner: torch.Tensor) -> None: ...

    def __repr__(self) -> str:
        return f"GpuTensor({tuple(self.shape)}, {self.dtype}, {self.inner})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return cls.run(func, args, kwargs or {})

    @property
    def data(self) -> torch.Tensor:
        with torch.no_grad():
            return self.detach()

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        if not isinstance(value, GpuTensor):
            raise RuntimeError("data of another device")
        self.inner = value.inner

    def tolist(self) -> list:
        return self.cpu().tolist()

    def numpy(self, **_: object) -> None:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def __deepcopy__(self, memo: dict) -> GpuTensor:
        with torch.no_grad():
            copied = self.detach().clone().requires_grad_(self.requires_grad)
        if isinstance(self, torch.nn.Parameter):
            copied._is_param = True
        memo[id(self)] = copied
        return copied


def tensors(values: Iterable[Any]) -> list[torch.Tensor]:
    """Return the tensors among arguments or results, also those in lists."""
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif type(value) in (list, tuple):
            found += tensors(value)
    return found


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return arguments or results with a function applied to all but their lists."""
    if type(value) in (list, tuple):
        return type(value)(mapped(item, change) for item in value)
    return change(value)
