"""What a run was asked to do: checked before it starts, then written to params.yaml.

`dopsd run` checks a request before Prefect gets it; the flow writes the same request.
"""

import json
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from dopsd.config import params_file, profiles
from dopsd.config.loading import checked, parse_yaml, read_yaml
from dopsd.config.named_files import require_files
from dopsd.config.params import Params
from dopsd.config.profiles import AS_IT_STANDS, HARDWARE, PRESET
from dopsd.core.errors import Code
from dopsd.training.pretraining.origin import mismatch

PARAMS = Path("params.yaml")


@dataclass(frozen=True)
class RunRequest:
    """Parameters of a run that decide its settings; None or empty keeps the profile's value."""

    profile: str = profiles.EMBEDDED
    preset: str = PRESET
    hardware: str = HARDWARE
    task: str | None = None
    methods: list[str] | None = None
    seeds: list[int] | None = None
    max_updates: int | None = None
    overrides: dict[str, Any] = field(default_factory=dict)

    @property
    def source(self) -> str | None:
        """Name of the profile; None for params.yaml as it stands."""
        return None if self.profile == AS_IT_STANDS else self.profile

    def raw(self) -> dict[str, Any]:
        """Return the settings that the changes are applied to."""
        if self.source:
            old = read_yaml(PARAMS) if PARAMS.is_file() else {}
            return params_file.of_profile(self.source, self.preset, self.hardware, old)
        if (self.preset, self.hardware) != (PRESET, HARDWARE):
            raise Code.PROFILE.error(profiles.NEEDS_PROFILE)
        if not PARAMS.is_file():
            raise Code.NO_SETTINGS_FILE.error(
                f"{PARAMS}: no such file; run this in the project's folder"
            )
        return read_yaml(PARAMS)

    @property
    def changes(self) -> list[str]:
        """Changes as KEY=VALUE; named parameters win over `overrides`."""
        parameters = {
            "matrix.methods": self.methods,
            "matrix.seeds": self.seeds,
            "train.updates": self.max_updates,
        }
        parameters["matrix.tasks"] = [self.task] if self.task else None
        overrides = self.singles | {key: value for key, value in parameters.items() if value}
        return [f"{key}={json.dumps(value, default=str)}" for key, value in overrides.items()]

    @property
    def singles(self) -> dict[str, Any]:
        """`overrides` by full key, also where it has a whole section as its value."""
        pairs = (params_file.single(key, value) for key, value in self.overrides.items())
        return dict(chain.from_iterable(pairs))

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters of the deployment dopsd/train."""
        return asdict(self)

    @property
    def all_changes(self) -> list[str]:
        """`changes`, and what follows from them.

        Methods of the matrix, and those that params.yaml names, with a number of updates of their
        own get `max_updates`; with other tasks in the matrix, bases of tasks that are not in it
        stay as they are.
        """
        raw, changes = self.raw(), self.changes
        if self.max_updates:
            asked = params_file.with_changes(raw, changes)
            in_file = [] if self.source else [*(raw.get("method") or {})]
            methods = [*checked(asked, "--set").matrix.methods, *in_file]
            changes += [
                f"method.{name}.train.updates={self.max_updates}"
                for name in dict.fromkeys(methods)
                if ((asked.get("method") or {}).get(name, {}).get("train") or {}).get("updates")
            ]
        tasks = [self.task] if self.task else self.singles.get("matrix.tasks")
        for section in ("pretrain", "adapt"):
            made = (raw.get(section) or {}).get("tasks") or []
            if isinstance(tasks, list) and f"{section}.tasks" not in self.singles:
                kept = [name for name in made if name in tasks]
                changes += [f"{section}.tasks={json.dumps(kept)}"] if kept != made else []
        return changes


def parsed(changes: list[str]) -> dict[str, Any]:
    """Return KEY=VALUE changes as overrides; the last of several changes of a key wins."""
    params_file.with_changes({}, changes)
    pairs = [change.partition("=") for change in changes]
    return {key: parse_yaml(text, f"--set {key}") for key, _, text in pairs}


def check(request: RunRequest, can_retrain: bool = False) -> Params:
    """Return the settings that a run would write; params.yaml stays as it is.

    Args:
        can_retrain: Accept settings that the embedded base does not match.
    """
    changes = request.all_changes
    params = checked(
        params_file.with_changes(request.raw(), changes), "--set" if changes else PARAMS
    )
    require_files(params)
    if not can_retrain and (reasons := mismatched_bases(params)):
        raise Code.BASE_DIFFERS.error(reasons)
    return params


def mismatched_bases(params: Params) -> list[str]:
    """Return a line for each embedded base that these settings or their data would not make."""
    tasks = params.pretrain.tasks
    return [reason for task in tasks if (reason := mismatch(params.embedded_base(task), task))]


def write(request: RunRequest) -> list[str]:
    """Check the settings of a run, write params.yaml, and return a line for every changed key.

    Raises:
        DopsdError: if a setting is wrong; params.yaml stays as it was.
    """
    return params_file.params(
        request.source,
        request.preset,
        request.hardware,
        request.all_changes,
        PARAMS,
        is_run=True,
    )
