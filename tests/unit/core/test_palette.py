"""How results look: colours of methods, none alike for any eye, and shares as percent."""

from itertools import combinations

import numpy
import pytest

from dopsd.algorithms.registry import ALGORITHMS
from dopsd.core.palette import (
    NEUTRAL,
    PALETTE,
    SHADES,
    colour_of,
    drawing_colours,
    run_colour,
    shade_of,
)
from dopsd.core.registry import Registry
from dopsd.core.statistics import gap, percent, points, within

# Machado, Oliveira and Fernandes 2009: how colours look without one kind of cones
SIGHT = {
    "normal": numpy.eye(3),
    "no red": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "no green": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.01182, 0.04294, 0.968881],
    ],
    "no blue": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.3039],
    ],
}
LMS = [
    [0.4122214708, 0.5363325363, 0.0514459929],
    [0.2119034982, 0.6806995451, 0.1073969566],
    [0.0883024619, 0.2817188376, 0.6299787005],
]
LAB = [
    [0.2104542553, 0.793617785, -0.0040720468],
    [1.9779984951, -2.428592205, 0.4505937099],
    [0.0259040371, 0.7827717662, -0.808675766],
]


def linear(colour):
    values = numpy.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return numpy.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def oklab(colour, sight):
    seen = numpy.clip(numpy.array(SIGHT[sight]) @ linear(colour), 0, 1)
    return numpy.array(LAB) @ numpy.cbrt(numpy.array(LMS) @ seen)


def contrast(first, second):
    a, b = sorted(float(linear(c) @ [0.2126, 0.7152, 0.0722]) + 0.05 for c in (first, second))
    return b / a


@pytest.mark.parametrize("sight", SIGHT)
def test_no_two_colours_look_alike(sight):
    looks = [oklab(colour, sight) for colour in PALETTE]
    nearest = min(float(numpy.linalg.norm(a - b)) for a, b in combinations(looks, 2))
    assert nearest > 0.09  # black to white is 1


def test_colours_show_on_white_and_on_dark():
    assert all(contrast(c, "#ffffff") > 1.9 and contrast(c, "#11171c") > 2.1 for c in PALETTE)


def test_colours_and_shades_never_repeat():
    assert len({colour_of(position) for position in range(60)}) == 60
    shades = {shade_of(c, seed) for c in PALETTE for seed in range(len(SHADES))}
    assert len(shades) == len(PALETTE) * len(SHADES)
    assert shade_of("#804020", 0) == "#804020"
    assert shade_of("#000000", 1) == "#595959"  # 0.35 of white


def test_a_plugin_changes_no_colour_of_a_built_in_method():
    registry = Registry("dopsd.algorithms", "algorithm")
    positions = {name: ALGORITHMS.position(name) for name in ALGORITHMS.names}
    # sorts before all built-in names
    registry.packages = {"a_plugin": "elsewhere.a_plugin"} | ALGORITHMS.packages
    assert {name: registry.position(name) for name in positions} == positions
    assert registry.position("a_plugin") == len(positions)


def test_a_variant_has_a_colour_of_its_own_and_an_unknown_method_is_grey():
    method, variant = (run_colour(ALGORITHMS, name) for name in ("d_opsd", "d_opsd-no_clip"))
    assert method == PALETTE[ALGORITHMS.position("d_opsd")]
    assert variant not in PALETTE
    assert run_colour(ALGORITHMS, "base") == NEUTRAL


def test_variants_in_one_drawing_take_colours_that_no_method_of_it_has():
    variants = [f"espo-{name}" for name in "abcdefghij"]
    colours = drawing_colours(ALGORITHMS, ["d_opsd", *variants, "espo", "gone"])
    assert colours["d_opsd"] == run_colour(ALGORITHMS, "d_opsd")
    assert colours["espo"] == run_colour(ALGORITHMS, "espo") and colours["gone"] == NEUTRAL
    assert {*colours.values()} == {*PALETTE, NEUTRAL}


def test_shares_and_differences_as_text():
    assert percent(0.6434) == "64.3" and percent(-0.005, "+") == "-0.5"
    assert within(0.643, (0.601, 0.682)) == "64.3 [60.1, 68.2]"
    assert gap(0.105, [-0.01, 0.131]) == "+10.5 [-1.0, +13.1]"
    assert points(0.0, [0.0, 0.02]) == "+0.0 points [+0.0, +2.0]"
