"""Name what computes: the device, and the versions of packages."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@cache
def device_name(device: torch.device) -> str:
    """Return the name of a GPU or of this machine's processor."""
    if device.type == "cuda":
        import torch

        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    lines = (
        info.read_text(errors="replace", encoding="utf-8").splitlines() if info.is_file() else []
    )
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{models[0] if models else platform.processor() or platform.machine()} (CPU)"


@cache
def package_version(name: str) -> str:
    """Return the version of an installed package; a checkout that is not installed has none."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "from a checkout"
