"""What a person asks of a run, and params.yaml written for it: both doors read their settings from
that file.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from dopsd.algorithms.registry import ALGORITHMS
from dopsd.config import params_file, profiles
from dopsd.config.loading import read_yaml
from dopsd.config.params import Params
from dopsd.core.paths import RunKey
from dopsd.tasks.registry import TASKS

AS_IT_STANDS = "params.yaml as it stands"
if TYPE_CHECKING:
    Profile: TypeAlias = str
    Task: TypeAlias = str
    Method: TypeAlias = str
else:  # what there is, so that Prefect's forms offer it
    Profile = Literal[(*profiles.names(), AS_IT_STANDS)]
    Task = Literal[tuple(TASKS.names)]
    Method = Literal[tuple(ALGORITHMS.names)]
Preset = Literal["reference", "paper"]
Hardware = Literal["1x80gb", "4x80gb", "1xh200"]
OtherCode = Literal["stop", "continue", "anew"]
PARAMS = Path("params.yaml")


@dataclass(frozen=True)
class RunRequest:
    """The parameters of a run that decide its settings; what is None or empty stays as the profile
    has it.
    """

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
        """As `dopsd params --set` takes them; named parameters go before `overrides`."""
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
    """params.yaml for this run, checked before it is written; a line for every key that changed."""
    profile = None if request.profile == AS_IT_STANDS else request.profile
    changes = request.changes
    if request.max_updates:  # of every method, also of those that have a number of their own
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
    m = params.matrix
    return [RunKey(*run_key) for run_key in product(m.tasks, m.methods, m.seeds)]
