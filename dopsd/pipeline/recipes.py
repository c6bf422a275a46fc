"""recipes.yaml: the numbers that stand for dopsd's code in what DVC's stages depend on.

A package declares `RECIPE` in its `__init__.py`, and a stage in its file; 1 if it declares none.
The number is raised when results change on purpose: other code with the same numbers makes nothing
stale, in a checkout, with an installed package and of a plug-in alike. `dopsd init` writes the
file, and `dopsd repro` corrects it before it runs DVC.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from dopsd.algorithms.registry import ALGORITHMS, FAMILIES
from dopsd.config.loading import load_params, read_yaml
from dopsd.config.params import Params
from dopsd.config.tasks import own_tasks
from dopsd.core.environment import DVC_STAGE
from dopsd.core.errors import Code
from dopsd.core.files import rewrite
from dopsd.core.fingerprint import folder_of, recipe
from dopsd.tasks.registry import TASKS, package_of

FILE, PARAMS = Path("recipes.yaml"), Path("params.yaml")
HEADER = """\
# What results depend on of dopsd's code: a number is raised where the same settings give other
# results, and DVC then runs its stages again. Written by `dopsd repro`; do not edit.
"""
ROOMS = ("core", "distributed", "models", "rollout", "training", "evaluation", "analysis")
# stages without a number of their own in params.yaml
STAGES = (
    "adapt",
    "evaluate_base",
    "train",
    "evaluate",
    "select",
    "test",
    "report",
    "verify_teacher",
)


def write_recipes() -> None:
    """Write recipes.yaml, if it differs."""
    text = HEADER + yaml.safe_dump(recipes(), sort_keys=False)
    if not FILE.is_file() or FILE.read_text(encoding="utf-8") != text:
        rewrite(FILE, text.encode())


def recipes() -> dict[str, Any]:
    """Return the number of each room, stage, task and algorithm that runs can use from here.

    Tasks and algorithms include plug-ins, and tasks that params.yaml defines.
    """
    root = folder_of("dopsd")
    own = own_tasks(read_yaml(PARAMS)) if PARAMS.is_file() else {}
    tasks = TASKS.packages | {name: package_of(name) for name in own}
    return {
        **{name: recipe(root / name) for name in ROOMS},
        "stages": {name: recipe(root / f"pipeline/stages/{name}.py") for name in STAGES},
        "tasks": {
            "common": recipe(root / "tasks/common"),
            **{name: recipe(folder_of(package)) for name, package in sorted(tasks.items())},
        },
        "algorithms": {
            "common": recipe(root / "algorithms/common"),
            **{name: _with_family(name) for name in ALGORITHMS.names},
        },
    }


def _with_family(name: str) -> int:
    """Return an algorithm's number, raised by those of the algorithms that it derives from."""
    numbers = {member: recipe(folder_of(module)) for member, module in ALGORITHMS.packages.items()}
    return numbers[name] + sum(numbers[parent] - 1 for parent in FAMILIES.get(name, ()))


PIPELINE = Path("dvc.yaml")


@contextmanager
def unchanged(path: Path, params: Params) -> Iterator[None]:
    """Fail the stage inside if its sections of the settings, or recipes.yaml, change meanwhile.

    Does nothing outside DVC.
    """
    stage = os.environ.get(DVC_STAGE, "").partition("@")[0]
    declared = read_yaml(PIPELINE)["stages"].get(stage, {}) if stage and PIPELINE.is_file() else {}
    keys = [key for key in declared.get("params", []) if isinstance(key, str)]
    sections = {key.partition(".")[0] for key in keys}
    recipes = _recipes()
    yield
    current_params = load_params(path) if sections else params
    changed = [
        f"{path} ({name})"
        for name in sorted(sections)
        if vars(current_params)[name] != vars(params)[name]
    ]
    changed += [str(FILE)] if declared and _recipes() != recipes else []
    if changed:
        raise Code.CHANGED_DURING_STAGE.error(
            f"{stage}: {', '.join(changed)} changed during the stage, so DVC would record the"
            " result under the new version; no training is lost: run the same command"
        )


def _recipes() -> bytes:
    return FILE.read_bytes() if FILE.is_file() else b""
