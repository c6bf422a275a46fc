"""Colours of methods and their seeds: the same in figures, reports and MLflow.

The position of a method in its registry picks its colour: `run_colour(ALGORITHMS, "d_opsd")`.
"""

from __future__ import annotations

import colorsys
from collections.abc import Iterable
from typing import TYPE_CHECKING
from zlib import crc32

if TYPE_CHECKING:
    from dopsd.core.registry import Registry

# Chosen by search: the smallest distance of two colours is 0.09 in OKLab for normal vision and for
# the three kinds of colour blindness, and each has a contrast of 1.9 on white and 2.1 on dark grey.
PALETTE: tuple[str, ...] = (
    "#1e3cff",  # blue
    "#f0a5a5",  # pink
    "#961e00",  # brick red
    "#2dc3ff",  # sky blue
    "#5aa51e",  # green
    "#b44b96",  # mauve
    "#c369ff",  # violet
    "#7800c3",  # purple
    "#005a4b",  # dark green
    "#f06987",  # rose
    "#787800",  # olive
    "#a5c300",  # lime
)
NEUTRAL = "#808080"  # the base, and methods that are no longer installed
SHADES = (0.0, 0.35, -0.3, 0.55, -0.5)  # share of white (positive) or black (negative), by seed
GOLDEN = 0.618033988749895  # of the circle of hues: any number of steps gives different hues
VARIANTS, HUES = 100, 360  # variants of methods are at positions beyond those of methods


def run_colour(methods: Registry, method: str, seed: int = 0) -> str:
    """Return the colour of a run, as #rrggbb.

    A variant, named METHOD-VARIANT, has a hue of its own, by its name. The base and methods that
    are no longer installed are grey.

    Args:
        seed: the seed; the default gives the colour of the method.
    """
    if method in methods.names:
        return shade_of(colour_of(methods.position(method)), seed)
    if method.partition("-")[0] in methods.names:
        return shade_of(colour_of(VARIANTS + crc32(method.encode()) % HUES), seed)
    return NEUTRAL


def drawing_colours(methods: Registry, shown: Iterable[str]) -> dict[str, str]:
    """Return the colours of methods that one drawing shows, as #rrggbb.

    Methods have their own. Variants take the colours of the palette that are left, in order: the
    hues of their names can be too near to each other.
    """
    colours = {method: run_colour(methods, method) for method in shown}
    left = [colour for colour in PALETTE if colour not in colours.values()]
    variants = [method for method in colours if "-" in method and colours[method] != NEUTRAL]
    return colours | dict(zip(variants, left, strict=False))


def colour_of(position: int) -> str:
    """Return the colour of a method, as #rrggbb; those beyond PALETTE have other hues."""
    if position < len(PALETTE):
        return PALETTE[position]
    beyond = position - len(PALETTE)
    return _hex(colorsys.hls_to_rgb((0.07 + beyond * GOLDEN) % 1, (0.4, 0.55)[beyond % 2], 0.55))


def shade_of(colour: str, seed: int) -> str:
    """Return the colour of a seed: the method's for seed 0, lighter or darker for the next ones.

    Args:
        colour: the colour of the method, as #rrggbb.
        seed: the seed; shades repeat after len(SHADES) seeds.
    """
    share = SHADES[seed % len(SHADES)]
    target = 1.0 if share > 0 else 0.0
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (value + abs(share) * (target - value) for value in (red, green, blue))
    return _hex((red, green, blue))


def _hex(rgb: tuple[float, float, float]) -> str:
    return "#" + "".join(f"{round(255 * value):02x}" for value in rgb)
