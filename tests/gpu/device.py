"""The pretended device: runs operators on true small values, or on the shapes of large ones.

Tensors of one operator must be on one device, as on a GPU. What makes the host wait is counted,
and bytes are followed.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gpu import cuda_api
from gpu.memory import Memory
from gpu.syncs import DATA_DEPENDENT, INDEXING, READS, HostSyncs, is_fill, is_mask
from gpu.tensor import GpuTensor, mapped, tensors

aten = torch.ops.aten
COLLECTIVES = "c10d"  # namespace of operators between GPUs
UNKNOWN = 1.0  # stands for a small number that depends on unknown ones


@dataclass(frozen=True)
class Schema:
    """What an operator writes to: positions and names of its arguments."""

    positions: tuple[int, ...]
    names: tuple[str, ...]
    returned: int  # tensors that it returns; of an in-place operator 0 or 1
    has_size: bool  # an argument says how large the result is

    def written(self, args: tuple, kwargs: dict) -> list[Any]:
        """Return the arguments that are written to."""
        if not self.positions:
            return []
        found = [args[i] for i in self.positions if i < len(args)]
        return found + [kwargs[name] for name in self.names if name in kwargs]


@functools.cache
def schema_of(func: Any) -> Schema:
    """Return what an operator writes to."""
    arguments = func._schema.arguments
    positions = [i for i, a in enumerate(arguments) if a.alias_info and a.alias_info.is_write]
    has_size = any(a.name in ("size", "repeats", "end") for a in arguments)
    names = tuple(arguments[i].name for i in positions)
    return Schema(tuple(positions), names, len(func._schema.returns), has_size)


class Device(TorchDispatchMode):
    """The device in use while it is entered.

    Attributes:
        limit: entries up to which a new tensor has true values; None: all have.
        syncs, memory: what happened on the device.
    """

    def __init__(self, limit: int | None = None, capacity: int | None = None) -> None:
        super().__init__()
        self.limit = math.inf if limit is None else limit
        self.syncs, self.memory = HostSyncs(), Memory(capacity)

    def __enter__(self):
        GpuTensor.run = self.run
        cuda_api.connect(self)
        torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(..., device="cuda") is a copy
        return super().__enter__()

    def __exit__(self, *error):
        torch._C._set_only_lift_cpu_tensors(False)
        return super().__exit__(*error)

    def reset(self) -> None:
        """Forget syncs and the peak; what is held stays."""
        self.syncs = HostSyncs()
        self.memory.reset_peak()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """Run one operator; those without a tensor of this device run as ever."""
        found = tensors([*args, *kwargs.values()])
        target = kwargs.get("device")
        target = None if target is None else torch.device(target)
        is_here = any(isinstance(t, GpuTensor) for t in found)
        is_there = target is not None and target.type == "cuda"
        if func is aten.is_pinned.default:
            return False
        if func is aten._pin_memory.default:  # main memory that a GPU copies from by itself
            return args[0].clone()
        if not is_here and not is_there:
            return func(*args, **kwargs)
        if func is aten._to_copy.default and target is not None and is_here != is_there:
            out = self._download(args[0], kwargs) if is_here else self._upload(args[0], kwargs)
        elif func is aten.copy_.default and len({isinstance(t, GpuTensor) for t in found}) == 2:
            out = self._copy_between(*args)
        elif func.namespace == COLLECTIVES:
            out = self._communicate(func, args, kwargs)
        elif func in READS:
            self.syncs.add("item")
            inner = args[0].inner
            out = (torch.ones((), dtype=inner.dtype) if inner.is_meta else inner).item()
        else:
            self._check_devices(func, args, found)
            self._count_waits(func, args)
            out = self._compute(func, args, kwargs, found)
        return out

    def wrap(self, value: Any) -> Any:
        """Return a result as one of this device."""
        if not isinstance(value, torch.Tensor):
            return value
        self.memory.follow(value)
        return GpuTensor(value)

    # -- between the devices

    def _download(self, source: GpuTensor, kwargs: dict) -> torch.Tensor:
        self.syncs.add("copy to the host")
        options = {**kwargs, "device": torch.device("cpu")}
        return aten._to_copy.default(_true(source), **options).clone()

    def _upload(self, source: torch.Tensor, kwargs: dict) -> GpuTensor:
        if not kwargs.get("non_blocking") and source.numel():
            self.syncs.add("copy from the host")
        place = "meta" if source.numel() > self.limit else "cpu"
        options = {**kwargs, "device": torch.device(place)}
        copied = aten._to_copy.default(source, **options)
        return self.wrap(copied.clone() if copied is source else copied)

    def _copy_between(self, to: torch.Tensor, source: torch.Tensor, is_async: bool = False):
        if isinstance(to, GpuTensor):
            if source.dim() and not is_async:
                self.syncs.add("copy from the host")
            if not to.inner.is_meta:
                to.inner.copy_(source)
            return to
        self.syncs.add("copy to the host")
        return to.copy_(_true(source))

    def _communicate(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """Run a collective on the values in main memory, as gloo does, in place."""
        self._check_devices(func, args, tensors(args))
        out = func(*mapped(args, _host), **kwargs)
        first = args[0]
        is_pair = isinstance(out, tuple) and len(out) == 2
        return (first, out[1]) if is_pair else out

    # -- what a GPU refuses or waits for

    def _check_devices(self, func: Any, args: tuple, found: list[torch.Tensor]) -> None:
        if func in INDEXING:  # indices may come from main memory, at the price of a wait
            found = tensors([args[0], *args[2:]])
        is_misplaced = func in INDEXING and not isinstance(args[0], GpuTensor)
        if is_misplaced or any(t.dim() for t in found if not isinstance(t, GpuTensor)):
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found cuda:0 and cpu in {func}"
            )

    def _count_waits(self, func: Any, args: tuple) -> None:
        if func in DATA_DEPENDENT or func is aten.equal.default:
            self.syncs.add(func._overloadpacket.__name__)
        if func not in INDEXING:
            return
        for index in args[1]:
            if index is not None and not isinstance(index, GpuTensor) and index.dim():
                self.syncs.add("index from the host")
            if is_mask(index) and not is_fill(func, args):
                self.syncs.add("boolean index")

    # -- values

    def _compute(self, func: Any, args: tuple, kwargs: dict, found: list[torch.Tensor]) -> Any:
        written = schema_of(func).written(args, kwargs)
        ours = [t for t in found if isinstance(t, GpuTensor)]
        is_known = not any(t.inner.is_meta for t in ours)
        if not is_known and func in INDEXING and any(map(is_mask, args[1])):
            args = (args[0], [i for index in args[1] for i in _positions(index)], *args[2:])
        if not is_known and func in DATA_DEPENDENT:
            args, is_known = mapped(args, _true), True
        if is_known and not written and not func.is_view and self._may_be_large(func, ours):
            shapes = func(*mapped(args, _meta), **{k: _meta(v) for k, v in kwargs.items()})
            is_known = all(t.numel() <= self.limit for t in tensors([shapes]))
        place = _host if is_known else _meta
        out = func(*mapped(args, place), **{k: mapped(v, place) for k, v in kwargs.items()})
        if written:
            return written[0] if schema_of(func).returned else None
        if not is_known and not func.is_view:
            out = mapped(out, self._guess)
        return mapped(out, self.wrap)

    def _may_be_large(self, func: Any, ours: list[torch.Tensor]) -> bool:
        if self.limit == math.inf:
            return False
        bound = math.prod(max(t.numel(), 2) for t in ours)  # no product or broadcast has more
        return not ours or schema_of(func).has_size or bound > self.limit

    def _guess(self, value: Any) -> Any:
        """Give a small result of unknown numbers some values, so that the work goes on."""
        if not isinstance(value, torch.Tensor) or value.numel() > self.limit:
            return value
        fill = UNKNOWN if value.dtype.is_floating_point else 0
        return torch.full(value.shape, fill, dtype=value.dtype, device="cpu")


def _host(value: Any) -> Any:
    """Return an argument as the CPU takes it."""
    if isinstance(value, GpuTensor):
        return value.inner
    return torch.device("cpu") if _is_cuda(value) else value


def _meta(value: Any) -> Any:
    """Return an argument without its numbers."""
    if isinstance(value, GpuTensor):
        value = value.inner
    if isinstance(value, torch.Tensor):
        return value if value.is_meta else value.to("meta")
    return torch.device("meta") if _is_cuda(value) else value


def _is_cuda(value: Any) -> bool:
    return isinstance(value, torch.device) and value.type == "cuda"


def _true(value: Any) -> Any:
    """Return a tensor of numbers on the CPU, made up where they are unknown."""
    if not isinstance(value, GpuTensor):
        return value
    inner = value.inner
    if not inner.is_meta:
        return inner
    return torch.full(inner.shape, UNKNOWN, dtype=inner.dtype, device="cpu")


def _positions(index: Any) -> tuple[Any, ...]:
    """Return an index, and a mask as the positions that its numbers select."""
    return _true(index).nonzero().unbind(1) if is_mask(index) else (index,)
