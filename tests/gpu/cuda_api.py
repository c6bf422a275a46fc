"""The functions of torch.cuda that the pretended device answers."""

from __future__ import annotations

import importlib
import os
import time
from typing import TYPE_CHECKING

import torch
from torch import distributed
from torch.optim import optimizer
from torch.utils import _foreach_utils

from gpu.tensor import GpuTensor

if TYPE_CHECKING:
    from gpu.device import Device

COUNT = int(os.environ.get("PRETENDED_GPUS", "1"))
CURRENT = int(os.environ.get("LOCAL_RANK", "0")) % COUNT
NAME = "pretended H100 80GB"
CAPACITY = int(80e9)
BEFORE = (  # libraries that would load their parts for CUDA
    *("torch._dynamo", "transformers", "accelerate", "peft.tuners.lora"),
    "dopsd.models.lora",
)


ONE_KERNEL = ("silu_backward", "mish_backward")  # torch splits them where CUDA's kernel is missing
KERNELS = torch.library.Library("aten", "IMPL")


class Properties:
    major, minor, total_memory, name, multi_processor_count = 9, 0, CAPACITY, NAME, 132
    uuid = f"GPU-{CURRENT}"


class Event:
    """A CUDA event whose times are the host's."""

    def __init__(self, *_: object, **__: object) -> None:
        self.seconds = 0.0

    def record(self, *_: object) -> None:
        self.seconds = time.perf_counter()

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Event) -> float:
        return (end.seconds - self.seconds) * 1e3


def _set_rng_state(state: torch.Tensor, device: object = 0) -> None:
    assert state.device.type == "cpu" and state.dtype == torch.uint8, (
        "CUDA's state is in main memory"
    )


def prepare() -> None:
    """Replace what torch asks of CUDA before a device is in use."""
    os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"  # threads would not see the device
    replaced = {
        "_lazy_init": lambda: None,
        "is_initialized": lambda: True,
        "current_device": lambda: CURRENT,
        "device_count": lambda: COUNT,
        "set_device": lambda device: None,
        "get_rng_state": lambda device=0: torch.zeros(16, dtype=torch.uint8, device="cpu"),
        "set_rng_state": _set_rng_state,
        "manual_seed": lambda seed: None,
        "manual_seed_all": lambda seed: None,
        "synchronize": lambda device=None: None,
        "empty_cache": lambda: None,
        "get_device_name": lambda device=None: NAME,
        "get_device_properties": lambda device=0: Properties,
        "get_device_capability": lambda device=0: (9, 0),
        "is_bf16_supported": lambda *_, **__: True,
    }
    for name, function in replaced.items():
        setattr(torch.cuda, name, function)
    for name in ONE_KERNEL:
        KERNELS.impl(name, _never_called, "CUDA")
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    # as CUDA's own tensors: optimizers and clipping then work on lists of tensors
    for types in (_foreach_utils._foreach_supported_types, optimizer._foreach_supported_types):
        types.append(GpuTensor)


def _never_called(*_: object) -> None:
    raise AssertionError("the device runs every operator")


def _use_gloo() -> None:
    """Let gloo stand in for NCCL; collectives then work on values in main memory."""
    distributed.is_nccl_available = lambda: True
    original = distributed.init_process_group

    def started(backend: str | None = None, *args: object, **kwargs: object) -> None:
        kwargs.pop("device_id", None)
        original("gloo", *args, **kwargs)

    distributed.init_process_group = started


def announce() -> None:
    """Claim that CUDA is available, once the libraries that would then load its parts are there."""
    for module in BEFORE:
        importlib.import_module(module)
    torch.Tensor.pin_memory = torch.Tensor.clone  # pages stay pageable: the driver is missing
    _use_gloo()
    torch.cuda.is_available = lambda: True
    torch.cuda._is_compiled = lambda: True
    torch.version.cuda = "13.0"


def connect(device: Device) -> None:
    """Let torch.cuda report the memory of a device."""
    memory = device.memory
    reports = {
        "reset_peak_memory_stats": lambda device=None: memory.reset_peak(),
        "max_memory_allocated": lambda device=None: memory.peak,
        "memory_allocated": lambda device=None: memory.held,
        "memory_reserved": lambda device=None: memory.held,
        "max_memory_reserved": lambda device=None: memory.peak,
        "mem_get_info": lambda device=None: (CAPACITY - memory.held, CAPACITY),
        "Event": Event,
    }
    for name, function in reports.items():
        setattr(torch.cuda, name, function)
