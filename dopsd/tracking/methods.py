"""How cards and tags name a run's method: with the variant that its settings are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dopsd.algorithms.registry import ALGORITHMS
from dopsd.algorithms.variants import how, label, variant_of
from dopsd.core.docstrings import first_line

if TYPE_CHECKING:
    from dopsd.training.run_settings import RunSettings


def about(package: str) -> str:
    """Return what a task or an algorithm is: the first line of its package, without full stop."""
    return first_line(package).rstrip(".") or package.rpartition(".")[2]


def variant(run: RunSettings) -> str:
    """Return the name of the method that the run's settings are; empty: the algorithm's."""
    return variant_of(run.kind, run.algorithm)


def method_name(run: RunSettings) -> str:
    """Return the name of the run's method: `espo (GDSD)`."""
    return label(run.key.method, variant(run))


def about_method(run: RunSettings) -> str:
    """Return what the run's method is, without full stop."""
    name = variant(run)
    return how(run.kind, name).rstrip(".") if name else about(ALGORITHMS.packages[run.kind])
