"""How large the project may be. Who raises a number says why, in the same commit."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from conftest import ROOT
from pydantic import BaseModel

from dopsd.cli.main import build_parser
from dopsd.config.params import Params

BUDGETS = {
    "lines of dopsd/ and flows/": 46_080,
    "lines of tests/": 37_310,  # updates of two shapes as graphs, presets of presets
    "lines of benchmarks/": 5_520,
    "files of the largest room": 20,  # core/processes.py
    "commands": 39,  # restore
    "options": 173,  # launch --at-once
    "keys of params.yaml": 870,  # select.race, model.cuda_graphs
    "variables DOPSD_*": 19,
}


def sources(*folders: str) -> list[Path]:
    return [path for folder in folders for path in (ROOT / folder).rglob("*.py")]


def lines(*folders: str) -> int:
    return sum(len(path.read_bytes().splitlines()) for path in sources(*folders))


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in dict.fromkeys(action.choices.values()):
                yield from parsers(inner)


def keys(kind: object, seen: tuple[object, ...] = ()) -> int:
    """Keys of a section and of those in it; a section that stands in two places counts in both."""
    if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
        return sum(keys(inner, seen) for inner in get_args(kind))
    if kind in seen:
        return 0
    fields = kind.model_fields.values()
    return len(fields) + sum(keys(field.annotation, (*seen, kind)) for field in fields)


def sizes() -> dict[str, int]:
    found = [*parsers(build_parser())]
    texts = [path.read_text() for path in sources("dopsd", "flows", "infra")]
    variables = {name for text in texts for name in re.findall(r"\"(DOPSD_[A-Z_]+)\"", text)}
    rooms = Counter(path.parent for path in sources("dopsd", "flows") if path.name != "__init__.py")
    return {
        "lines of dopsd/ and flows/": lines("dopsd", "flows"),
        "lines of tests/": lines("tests"),
        "lines of benchmarks/": lines("benchmarks"),
        "files of the largest room": max(rooms.values()),
        "commands": len(found) - 1,
        "options": sum(bool(a.option_strings) for p in found for a in p._actions),
        "keys of params.yaml": keys(Params),
        "variables DOPSD_*": len(variables),
    }


@pytest.mark.parametrize("name", BUDGETS)
def test_nothing_grows_without_a_word(name: str):
    size, budget = sizes()[name], BUDGETS[name]
    assert size <= budget, f"{name}: {size} of {budget}; make something smaller, or raise it here"
    assert size >= 0.95 * budget, f"{name}: {size} of {budget}; lower the budget to keep the gain"
