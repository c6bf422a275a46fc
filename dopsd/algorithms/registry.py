"""Algorithms: folders of dopsd/algorithms, and packages of the entry points `dopsd.algorithms`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from pydantic import Field
from ruamel.yaml import YAML

from dopsd.algorithms.common.config import AlgorithmConfig
from dopsd.core.errors import unknown
from dopsd.core.registry import Registry, first_line
from dopsd.core.settings import Section

if TYPE_CHECKING:
    from dopsd.algorithms.common.base import Algorithm, AlgorithmContext

ALGORITHMS = Registry("dopsd.algorithms", "algorithm", AlgorithmConfig)
# algorithms that derive from others, whose folders they import and whose recipes count as theirs
FAMILIES = {
    "ar_opsd": ("d_opsd",),
    "infill": ("d_opsd", "trace_rl"),
    "temporal": ("d_opsd", "trace_rl"),
}


def blocks_fault(name: str, config: AlgorithmConfig) -> str | None:
    """Return the setting that teaches a block-causal base nothing, as a message, or None."""
    if config.unseen_by_blocks is None:
        return None
    setting, remedy = config.unseen_by_blocks
    return (
        f"method.{name}.{setting} teaches nothing with this base: under its block-causal attention"
        f" no token sees a later block; {remedy}"
    )


def load_algorithm(name: str, config: AlgorithmConfig, context: AlgorithmContext) -> Algorithm:
    """Return the algorithm `name`; `build` in the folder's algorithm.py makes it."""
    from dopsd.algorithms.common.base import Algorithm  # imports torch; only training needs it

    arguments = {"config": config, "context": context}
    algorithm: Algorithm = ALGORITHMS.make(name, "algorithm.build", Algorithm, **arguments)
    return algorithm


class Variant(Section):
    """A method that settings of an algorithm make."""

    settings: dict[str, Any]  # by which a run is known to be this method
    needed: dict[str, Any] = Field({}, alias="with")  # what these settings need or publish besides
    how: str  # how the method works, in a sentence


@cache
def variants_of(algorithm: str) -> dict[str, Variant]:
    """Return the variants of an algorithm, by the name that reports give them."""
    path = ALGORITHMS.path(algorithm, "variants.yaml")
    named = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8")) if path else {}
    return {name: Variant.model_validate(values) for name, values in named.items()}


def variant_of(algorithm: str, config: AlgorithmConfig) -> str:
    """Return the name of the method that these settings are; empty: that of the algorithm."""
    values = config.model_dump()
    for name, variant in variants_of(algorithm).items():
        if variant.settings.items() <= values.items():
            return name
    return ""


def how(algorithm: str, variant: str) -> str:
    """Return in a sentence how an algorithm works, or its variant."""
    if not variant:
        return first_line(ALGORITHMS.file(algorithm, "algorithm"))
    return f"{variant}: {variants_of(algorithm)[variant].how}"


def label(method: str, variant: str) -> str:
    """Return how reports name a method: `espo (GDSD)`, or `espo` without a variant."""
    return f"{method} ({variant})" if variant else method


def unknown_method(key: str, name: str, known: Sequence[str]) -> str:
    """Return the line that refuses a method, and says which settings of another one make it.

    Args:
        key: where the name was found, such as `--method`.
    """
    for algorithm in ALGORITHMS.names:
        for title, variant in variants_of(algorithm).items():
            if _plain(title) == _plain(name):
                settings = variant.settings | variant.needed
                values = ", ".join(f"{setting} {value}" for setting, value in settings.items())
                is_own = ALGORITHMS.packages[algorithm].startswith(f"{ALGORITHMS.package}.")
                page = f": docs/algorithms/{algorithm}.md" if is_own else ""
                return f"{key} {name}: is method {algorithm} with {values}{page}"
    return unknown(f"{key} {name}", known)


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")
