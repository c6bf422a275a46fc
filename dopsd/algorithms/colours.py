"""Colours of runs: the method's, lighter or darker by seed."""

from __future__ import annotations

from zlib import crc32

from dopsd.algorithms.common.config import kind_of
from dopsd.algorithms.registry import ALGORITHMS
from dopsd.core.palette import NEUTRAL, colour_of, shade_of

VARIANTS, HUES = 100, 360  # variants are at positions beyond those of methods


def run_colour(method: str, seed: int = 0) -> str:
    """Return the colour of a run, as #rrggbb.

    A variant of a method has a hue of its own, by its name. The base and methods that are no longer
    installed are grey.

    Args:
        method: the method or variant.
        seed: the seed; the default gives the colour of the method.
    """
    if kind_of(method) not in ALGORITHMS.names:
        return NEUTRAL
    if method == kind_of(method):
        return shade_of(colour_of(ALGORITHMS.position(method)), seed)
    return shade_of(colour_of(VARIANTS + crc32(method.encode()) % HUES), seed)
