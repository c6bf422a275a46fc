"""The modelled figures that `dopsd bench-gpu` compares with measured ones."""

from __future__ import annotations

import gc
from dataclasses import asdict
from typing import Any

import torch

from dopsd.pipeline.bench_gpu.cases import CASES, RATES
from dopsd.pipeline.bench_gpu.stopwatch import Figures, Stopwatch
from dopsd.pipeline.bench_gpu.subject import make, settings
from gpu.device import Device

LAYERS = (4, 32)
KERNELS = ("liger", "torch")


class Modelled(Stopwatch):
    """Reads the model of the pretended device in place of its clock."""

    repeats = 1

    def __init__(self, device: Device) -> None:
        self.device = device

    def start(self) -> None:
        self.device.reset()

    def stop(self, units: int = 1) -> Figures:
        model = self.device.model
        limits = {k: 1e3 * model.limits[k] / units for k in ("peak", "bandwidth", "launch")}
        return Figures(1e3 * model.seconds / units, self.device.memory.peak / 1e9, limits)


def table(device: Device) -> dict[str, Any]:
    """Return the figures by kernels, number of layers and case."""
    found: dict[str, Any] = {}
    for kernels in KERNELS:
        params = settings(f"model.kernels={kernels}")
        for layers in LAYERS:
            found.setdefault(kernels, {})[str(layers)] = _cases(device, params, layers)
            gc.collect()  # a model is in cycles
    return found


def _cases(device: Device, params: Any, layers: int) -> dict[str, Any]:
    stopwatch = Modelled(device)
    rates = {name: _rounded(run(stopwatch)) for name, run in RATES.items()}
    subject = make(params, layers, torch.device("cuda"), stopwatch)
    return rates | {case.name: _rounded(case.run(subject)) for case in CASES}


def _rounded(figures: Figures) -> dict[str, Any]:
    found = asdict(figures)
    found["limits"] = {kind: round(ms, 4) for kind, ms in found["limits"].items()}
    return found | {"ms": round(figures.ms, 4), "peak_gb": round(figures.peak_gb, 4)}
