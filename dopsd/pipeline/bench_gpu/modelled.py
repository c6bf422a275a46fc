"""Modelled figures of an H100, scaled to other cards, and their ratio to measured ones.

modelled.json is written by `python -m gpu modelled` (docs/pretended-gpu.md). It holds the
figures of each case by kernels, for two numbers of layers; for others they are linear.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from dopsd.pipeline.bench_gpu.stopwatch import Figures
from dopsd.pipeline.estimate import GPUS

LOW, HIGH = 0.7, 1.4  # ratios outside are marked
MODELLED_ON = GPUS["h100-80gb"]
FILE = "modelled.json"
VARIANTS = {"pcie", "nvl", "mig"}  # words of names that CUDA gives
SHARES = (0.70, 0.85)  # of peak and bandwidth that the model assumes (docs/pretended-gpu.md)


@dataclass(frozen=True)
class Card:
    """What modelled times are scaled to: a known card, or one by its own measured rates."""

    name: str
    peak: float  # TFLOP/s
    bandwidth: float  # TB/s


def known(device: str) -> Card | None:
    """Return the data sheet of a GPU by the name that CUDA gives it; None if it is not in GPUS.

    Slower variants of the same chip are not known: PCIe, NVL, other memory, a part of a card (MIG).
    """
    words = set(re.split(r"[^a-z0-9]+", device.lower()))
    if words & VARIANTS:
        return None
    for name, gpu in GPUS.items():
        if gpu.bandwidth and words.issuperset(name.split("-")):
            return Card(name, gpu.peak, gpu.bandwidth)
    return None


def by_rates(product_flops: float, copied_bytes: float) -> Card:
    """Return a card whose peaks are those that its own measured rates imply.

    Args:
        product_flops: FLOP/s of a matrix product.
        copied_bytes: bytes read and written a second by a copy.
    """
    peak, bandwidth = product_flops / SHARES[0] / 1e12, copied_bytes / SHARES[1] / 1e12
    return Card("by its own matrix product and copy", peak, bandwidth)


def scaled(ms_by_limit: dict[str, float], card: Card) -> float:
    """Return modelled milliseconds on another card; launches take as long on all."""
    return (
        ms_by_limit["peak"] * MODELLED_ON.peak / card.peak
        + ms_by_limit["bandwidth"] * MODELLED_ON.bandwidth / card.bandwidth
        + ms_by_limit["launch"]
    )


def table() -> dict[str, Any]:
    """Return modelled.json."""
    loaded: dict[str, Any] = json.loads(files(__package__).joinpath(FILE).read_text())
    return loaded


def modelled(name: str, kernels: str, layers: int, card: Card) -> Figures:
    """Return the modelled figures of a case.

    Raises:
        KeyError: if nobody has modelled it.
    """
    by_layers = table()[kernels]
    (few, low), (many, high) = sorted((int(n), cases[name]) for n, cases in by_layers.items())
    share = (layers - few) / (many - few)

    def between(a: float, b: float) -> float:
        return a + share * (b - a)

    limits = {kind: between(ms, high["limits"][kind]) for kind, ms in low["limits"].items()}
    return Figures(scaled(limits, card), between(low["peak_gb"], high["peak_gb"]))


def ratios(measured: Figures, expected: Figures) -> dict[str, float]:
    """Return measured / modelled of time and memory."""
    return {
        "ms": measured.ms / expected.ms,
        "peak_gb": measured.peak_gb / expected.peak_gb,
    }


def is_off(ratio: float) -> bool:
    """Return whether a ratio says that something is wrong, with the GPU or with the model."""
    return not LOW <= ratio <= HIGH
