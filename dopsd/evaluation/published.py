"""Published accuracies for comparison, from published.yaml in the folders of algorithms."""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from pydantic import Field, ValidationError
from ruamel.yaml import YAML

from dopsd.algorithms.registry import ALGORITHMS
from dopsd.core.errors import Code
from dopsd.core.settings import Section


class PublishedTable(Section):
    """A paper's accuracies of LLaDA-8B-Instruct, in percent, all measured alike."""

    source: str  # the paper
    protocol: str  # how they were measured
    name: str = ""  # tells apart the tables of one paper, in names of metrics: three_shot
    selection: str = "not stated"  # split that chose the checkpoints, where the paper says it
    as_profiles: bool = False  # measured with the prompts, splits and steps of our profiles
    counts: dict[str, str] = Field({})  # what its accuracy counts, by task, if not whole answers
    lengths: dict[str, list[int | str]]  # of answers in tokens, by task; `mean`: over several
    methods: dict[str, dict[str, dict[str, Any]]]  # accuracy for each length, by method and task
    ablations: dict[str, dict[str, float]] = Field({})  # of variants of the method, by task

    @property
    def key(self) -> str:
        """The paper, and the table if it has several: `2510.09541-three_shot`."""
        words = [self.source.split()[-1], *([self.name] if self.name else [])]
        return re.sub(r"[^\w.-]", "_", "-".join(words))


def published_tables() -> list[PublishedTable]:
    """Return all tables, those that were measured as our profiles do first."""
    tables = [table for name in ALGORITHMS.names for table in tables_of(name)]
    keys = [table.key for table in tables]
    for table in tables:
        if keys.count(table.key) > 1:
            raise Code.PLUGIN_BROKEN.error(
                f"published.yaml: several tables have the source {table.source} and the name"
                f" `{table.name}`; give each its own `name`, since protocols must not mix"
            )
    return sorted(tables, key=lambda table: not table.as_profiles)


def tables_of(algorithm: str) -> Iterator[PublishedTable]:
    """Yield the tables in an algorithm's folder."""
    path = ALGORITHMS.path(algorithm, "published.yaml")
    if path is None:
        return
    for table in _rows(path.read_text(encoding="utf-8")):
        try:
            yield PublishedTable.model_validate(table)
        except ValidationError as error:
            fault = error.errors()[0]
            key = ".".join(map(str, fault["loc"]))
            raise Code.PLUGIN_BROKEN.error(
                f"algorithm {algorithm}: published.yaml: {key}: {fault['msg']}"
            ) from error


@cache
def _rows(text: str) -> list[object]:
    rows: list[object] = YAML(typ="safe", pure=True).load(text)
    return rows


def published_variants(algorithm: str, task: str) -> dict[str, float]:
    """Return the accuracies of an algorithm's published variants on a task, by variant."""
    return {
        k: v for table in tables_of(algorithm) for k, v in table.ablations.get(task, {}).items()
    }
