"""The pretended device: tensors of one operator are on it, waits of the host are counted."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gpu import cuda_api
from gpu.memory import Memory
from gpu.syncs import DATA_DEPENDENT, INDEXING, READS, HostSyncs, is_fill, is_mask
from gpu.tensor import GpuTensor, mapped, tensors

aten = torch.ops.aten
COLLECTIVES = "c10d"  # namespace of operators between GPUs


class Device(TorchDispatchMode):
    """The device in use while it is entered; syncs and memory are what happened on it."""

    def __init__(self) -> None:
        super().__init__()
        self.syncs, self.memory = HostSyncs(), Memory()

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
            out = args[0].inner.item()
        else:
            self._check_devices(func, args, found)
            self._count_waits(func, args)
            out = self._compute(func, args, kwargs)
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
        return aten._to_copy.default(source.inner, **options).clone()

    def _upload(self, source: torch.Tensor, kwargs: dict) -> GpuTensor:
        if not kwargs.get("non_blocking") and source.numel():
            self.syncs.add("copy from the host")
        options = {**kwargs, "device": torch.device("cpu")}
        copied = aten._to_copy.default(source, **options)
        return self.wrap(copied.clone() if copied is source else copied)

    def _copy_between(self, to: torch.Tensor, source: torch.Tensor, is_async: bool = False):
        if isinstance(to, GpuTensor):
            if source.dim() and not is_async:
                self.syncs.add("copy from the host")
            to.inner.copy_(source)
            return to
        self.syncs.add("copy to the host")
        return to.copy_(source.inner)

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

    def _compute(self, func: Any, args: tuple, kwargs: dict) -> Any:
        out = func(*mapped(args, _host), **{k: mapped(v, _host) for k, v in kwargs.items()})
        for i, argument in enumerate(func._schema.arguments):
            if argument.alias_info and argument.alias_info.is_write:
                written = args[i] if i < len(args) else kwargs.get(argument.name)
                if written is not None:  # the arguments are the results
                    return written if func._schema.returns else None
        return mapped(out, self.wrap)


def _host(value: Any) -> Any:
    """Return an argument as the CPU takes it."""
    if isinstance(value, GpuTensor):
        return value.inner
    return torch.device("cpu") if _is_cuda(value) else value


def _is_cuda(value: Any) -> bool:
    return isinstance(value, torch.device) and value.type == "cuda"
