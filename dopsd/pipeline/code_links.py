"""code/: links to the folders of code that the stages of dvc.yaml depend on.

They are the same in a checkout, in a project beside an installed wheel, and for algorithms and
tasks of entry points: DVC follows a link and compares the files behind it. `dopsd repro` puts them
right before it runs DVC.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from dopsd.algorithms.registry import ALGORITHMS
from dopsd.core.errors import DopsdError
from dopsd.tasks.registry import TASKS

if TYPE_CHECKING:
    from dopsd.core.registry import Registry

FOLDER = Path("code")
WHOLE: tuple[str, ...] = (
    "core",
    "distributed",
    "models",
    "rollout",
    "training",
    "evaluation",
    "analysis",
)
WHOLE += ("pipeline", "tasks/common", "tasks/registry.py")
WHOLE += ("algorithms/common", "algorithms/registry.py")


def link_code() -> None:
    """Make links that are missing or lead elsewhere, and remove those that lead nowhere.

    Raises:
        DopsdError: if a folder stands in the place of a link, as a copy of a project has them whose
            links were followed.
    """
    for name, target in _targets().items():
        link = FOLDER / name
        target = (
            Path(os.path.relpath(target, link.parent))
            if target.is_relative_to(Path.cwd())
            else target
        )
        if link.is_symlink() and link.readlink() == target:
            continue
        if link.is_dir() and not link.is_symlink():
            raise DopsdError(
                f"{link}: a folder where a link to {target} belongs; remove it and run again, or"
                " copy projects with their links (cp -a)"
            )
        link.parent.mkdir(parents=True, exist_ok=True)
        tmp = link.with_name(f".{link.name}.tmp")
        tmp.unlink(missing_ok=True)
        tmp.symlink_to(target)
        tmp.replace(link)
    for link in FOLDER.rglob("*"):
        if link.is_symlink() and not link.exists():
            link.unlink()


def _targets() -> dict[str, Path]:
    root = _folder("dopsd")
    targets = {name: root / name for name in WHOLE}
    return targets | _of(TASKS, "tasks") | _of(ALGORITHMS, "algorithms")


def _of(registry: Registry, name: str) -> dict[str, Path]:
    return {f"{name}/{key}": _folder(package) for key, package in registry.packages.items()}


def _folder(package: str) -> Path:
    """The folder of a package that a stage, started here by `python -m dopsd`, imports; nothing is
    imported.
    """
    here = Path.cwd().joinpath(*package.split("."))
    if (here / "__init__.py").is_file():
        return here
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"{package} is no package", name=package)
    return Path(next(iter(spec.submodule_search_locations))).resolve()
