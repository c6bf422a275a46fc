"""Logged names against the glossary, in both directions."""

import re
from collections.abc import Iterable

from metric_tables import TABLES

from dopsd.core.metrics import Metric


def is_entry(entry: str, name: str) -> bool:
    """Whether an entry, such as `block_{b}/{name}`, describes a name."""
    return bool(re.fullmatch(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(entry)), name))


def undescribed(metrics: Iterable[str], names: Iterable[str]) -> list[str]:
    """Return the names that no entry describes."""
    return [name for name in names if not any(is_entry(entry, name) for entry in metrics)]


def unused(metrics: Iterable[str], names: Iterable[str]) -> list[str]:
    """Return the entries that describe none of the names."""
    return [entry for entry in metrics if not any(is_entry(entry, name) for name in names)]


def table(title: str) -> dict[str, Metric]:
    return next(part.metrics for part in TABLES if part.title == title)


def check(metrics: Iterable[str], names: Iterable[str]) -> None:
    """Every name is described, and every entry is used."""
    names = list(names)
    assert undescribed(metrics, names) == [], "describe them: docs/extending.md, Metrics"
    assert unused(metrics, names) == [], "nothing logs these: take them out of the glossary"
