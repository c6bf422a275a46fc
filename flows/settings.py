"""Choices that the forms of the flows offer, and the runs of a matrix."""

from __future__ import annotations

from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from dopsd.algorithms.registry import ALGORITHMS
from dopsd.config import profiles
from dopsd.config.loading import read_yaml
from dopsd.config.params import Params
from dopsd.config.profiles import AS_IT_STANDS
from dopsd.config.tasks import own_tasks
from dopsd.core.errors import DopsdError
from dopsd.core.paths import RunKey
from dopsd.tasks.registry import TASKS

PARAMS = Path("params.yaml")


def own_task_names() -> list[str]:
    """Return the names of the tasks that params.yaml defines; none if it cannot be read."""
    with suppress(DopsdError, OSError):
        return sorted(own_tasks(read_yaml(PARAMS)))
    return []


if TYPE_CHECKING:
    Profile: TypeAlias = str
    Task: TypeAlias = str
    Method: TypeAlias = str
    Preset: TypeAlias = str
    Hardware: TypeAlias = str
else:  # the registered names, which Prefect's forms offer as choices
    Profile = Literal[(*profiles.names(), AS_IT_STANDS)]
    Task = Literal[(*TASKS.names, *own_task_names())]
    Method = Literal[tuple(ALGORITHMS.names)]
    Preset = Literal[tuple(profiles.presets())]
    Hardware = Literal[tuple(profiles.hardware())]
OtherCode = Literal["stop", "continue", "anew"]


def run_keys(params: Params) -> list[RunKey]:
    """Return the runs of params.yaml's matrix."""
    m = params.matrix
    return [RunKey(*run_key) for run_key in product(m.tasks, m.methods, m.seeds)]
