"""What the pretended device does with single operators, as JSON for test_device.py."""

from __future__ import annotations

from typing import Any

import torch

from gpu.device import Device

GPU = "cuda"


def results() -> dict[str, Any]:
    """Return what happened, by the claim of a test."""
    with Device() as device:
        checks = (mixed, waits, held, out_of_memory, gradients)
        return {check.__name__: check(device) for check in checks}


def _error(work: Any) -> str:
    try:
        work()
    except (RuntimeError, TypeError, NotImplementedError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def mixed(device: Device) -> dict[str, str]:
    there, here = torch.ones(3, device=GPU), torch.ones(3)
    index = torch.zeros(1, dtype=torch.long, device=GPU)
    return {
        "sum": _error(lambda: there + here),
        "scalar": _error(lambda: there + torch.tensor(1.0)),
        "host indexed by device": _error(lambda: here[index]),
        "numpy": _error(lambda: there.numpy()),
    }


def waits(device: Device) -> dict[str, int]:
    x = torch.arange(4, device=GPU)
    works = {
        "sum": lambda: x.sum(),
        "item": lambda: x.sum().item(),
        "bool": lambda: bool((x > 1).any()),
        "tolist": lambda: x.tolist(),
        "upload": lambda: torch.tensor([1, 2], device=GPU),
        "asynchronous upload": lambda: torch.tensor([1, 2]).to(GPU, non_blocking=True),
        "mask": lambda: x[x > 1],
        "fill by mask": lambda: x.masked_fill(x > 1, 0),
        "assign by mask": lambda: x.clone().__setitem__(x > 1, 0),
        "index by a list": lambda: x[[0, 1]],
        "nonzero": lambda: x.nonzero(),
        "full": lambda: torch.full((3,), 1, device=GPU),
    }
    counts = {}
    for name, work in works.items():
        device.reset()
        work()
        counts[name] = device.syncs.total
    return counts


def held(device: Device) -> list[int]:
    """Return bytes after: a kilobyte, a view of it, the end of the first name, the end of both."""
    before = device.memory.held
    x = torch.zeros(256, device=GPU)
    found = [device.memory.held]
    view = x[:2]
    found.append(device.memory.held)
    del x
    found.append(device.memory.held)
    del view
    return [n - before for n in (*found, device.memory.held)]


def out_of_memory(device: Device) -> str:
    device.memory.capacity = device.memory.held + 1000
    try:
        return _error(lambda: torch.ones(10**4, device=GPU))
    finally:
        device.memory.capacity = None


def gradients(device: Device) -> list[float]:
    x = torch.tensor([1.0, 2.0], device=GPU, requires_grad=True)
    (x.square() * torch.tensor([3.0, 4.0], device=GPU)).sum().backward()
    return x.grad.tolist()
