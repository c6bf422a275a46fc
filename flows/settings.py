"""Parameters of a flow run, and params.yaml written from them."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from dopsd.algorithms.registry import ALGORITHMS
from dopsd.config import params_file, profiles
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
else:  # the registered names, which Prefect's forms offer as choices
    Profile = Literal[(*profiles.names(), AS_IT_STANDS)]
    Task = Literal[(*TASKS.names, *own_task_names())]
    Method = Literal[tuple(ALGORITHMS.names)]
Preset = Literal["reference", "paper"]
Hardware = Literal["1x80gb", "4x80gb", "1xh200"]
OtherCode = Literal["stop", "continue", "anew"]


@dataclass(frozen=True)
class RunRequest:
    """Parameters of a run that decide its settings; None or empty keeps the profile's value."""

    profile: Profile = "embedded"
    preset: Preset = "reference"
    hardware: Hardware = "1x80gb"
    task: str | None = None
    methods: list[str] | None = None
    seeds: list[int] | None = None
    max_updates: int | None = None
    overrides: dict[str, Any] = field(default_factory=dict)

    @property
    def changes(self) -> list[str]:
        """Changes as KEY=VALUE; named parameters win over `overrides`."""
        parameters = {
            "matrix.methods": self.methods,
            "matrix.seeds": self.seeds,
            "train.updates": self.max_updates,
        }
        parameters["matrix.tasks"] = [self.task] if self.task else None
        overrides = dict(self.overrides) | {
            key: value for key, value in parameters.items() if value
        }
        return [f"{key}={json.dumps(value)}" for key, value in overrides.items()]


def write(request: RunRequest) -> list[str]:
    """Check the settings of a run, write params.yaml, and return a line for every changed key.

    Raises:
        DopsdError: if a setting is wrong; params.yaml stays as it was.
    """
    profile = None if request.profile == AS_IT_STANDS else request.profile
    changes = request.changes
    if request.max_updates:  # for every method, also those with their own train.updates
        raw = (
            profiles.resolve(profile, request.preset, request.hardware)
            if profile
            else read_yaml(PARAMS)
        )
        methods = [
            name
            for name, section in raw.get("method", {}).items()
            if (section.get("train") or {}).get("updates")
        ]
        changes += [f"method.{name}.train.updates={request.max_updates}" for name in methods]
    return params_file.params(
        profile, request.preset, request.hardware, changes, PARAMS, needs_files=True
    )


def run_keys(params: Params) -> list[RunKey]:
    """Return the runs of params.yaml's matrix."""
    m = params.matrix
    return [RunKey(*run_key) for run_key in product(m.tasks, m.methods, m.seeds)]
