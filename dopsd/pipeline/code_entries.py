"""code/: what the stages of dvc.yaml depend on of the code.

A checkout's folders are links: DVC follows a link and compares the files behind it. A folder of an
installed package is a number instead, `RECIPE` in its `__init__.py`, which is raised when results
change on purpose: another release with the same numbers makes nothing stale. `dopsd init` writes
the entries, and `dopsd repro` corrects them before it runs DVC.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from dopsd.algorithms.registry import ALGORITHMS
from dopsd.config.loading import read_yaml
from dopsd.config.tasks import own_tasks
from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError
from dopsd.tasks.registry import CUSTOM, FOLDERS, TASKS

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER, PIPELINE, PARAMS = Path("code"), Path("dvc.yaml"), Path("params.yaml")
LINKS: tuple[str, ...] = (
    "core",
    "distributed",
    "models",
    "rollout",
    "training",
    "evaluation",
    "analysis",
)
LINKS += ("pipeline", "tasks/common", "tasks/registry.py")
LINKS += ("algorithms/common", "algorithms/registry.py")
NUMBER = re.compile(r"RECIPE = \d+\n")  # an entry's whole text, which DVC compares


def write_entries() -> None:
    """Write the entries that are missing or wrong, and remove those that refer to nothing.

    Raises:
        DopsdError: if other files are where an entry belongs, for example after a copy that
            followed links.
    """
    entries = _links() if _is_checkout(_folder("dopsd")) else _numbers()
    entries |= _plugins()
    for path, content in entries.items():
        if isinstance(content, Path):
            _link(path, content)
        else:
            _write(path, content)
    for path in [*FOLDER.rglob("*")]:
        is_dead = _is_dead(path) if path.is_symlink() else _is_number(path)
        if is_dead and path not in entries:
            path.unlink()
    for path in sorted(FOLDER.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink() and not any(path.iterdir()):
            path.rmdir()


def _is_dead(link: Path) -> bool:
    """Whether a link refers to nothing, or to the folder of tasks that params.yaml defines."""
    return not link.exists() or link.resolve() == _folder(FOLDERS.packages[CUSTOM]).resolve()


def recipe(path: Path) -> int | None:
    """Return the number that a folder's `__init__.py`, or a file, declares; None where it has none.

    Raises:
        DopsdError: if `RECIPE` is no whole number.
    """
    file = path / "__init__.py" if path.is_dir() else path
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            value = ast.unparse(node.value)
            if "RECIPE" not in map(ast.unparse, targets):
                continue
            if not value.isdecimal() or not int(value):
                raise DopsdError(
                    f"{file}: RECIPE = {value}: expected a whole number of 1 or more",
                    code=Code.PLUGIN_BROKEN,
                )
            return int(value)
    return None


def _links() -> dict[Path, Path | str]:
    root = _folder("dopsd")
    folders = {name: root / name for name in LINKS} | _registered("dopsd")
    return {FOLDER / name: path for name, path in folders.items()}


def _numbers() -> dict[Path, Path | str]:
    """Return an entry for every name of dvc.yaml, and for every task and algorithm of dopsd."""
    root = _folder("dopsd")
    folders = {name: root / name for name in _named()} | _registered("dopsd")
    return dict(
        _number(name, path, recipe(path) or 1) for name, path in folders.items() if path.exists()
    )


def _plugins() -> dict[Path, Path | str]:
    """Return a link to each folder that an entry point names, or the number that it declares."""
    built_in = _registered("dopsd")
    entries: dict[Path, Path | str] = {}
    for name, path in _registered().items():
        if name not in built_in:
            number = recipe(path)
            entry = (FOLDER / name, path) if number is None else _number(name, path, number)
            entries |= [entry]
    return entries


def _number(name: str, path: Path, number: int) -> tuple[Path, str]:
    """Return the file in code/ that represents a file or a folder of an installed package."""
    entry = FOLDER / name / "__init__.py" if path.is_dir() else FOLDER / name
    return entry, f"RECIPE = {number}\n"


def _named() -> Iterator[str]:
    """Yield the files and folders that dvc.yaml names; its templates name registered ones."""
    for stage in read_yaml(PIPELINE)["stages"].values():
        for name in (stage.get("do") or stage).get("deps", []):
            if isinstance(name, str) and name.startswith("code/") and "${" not in name:
                yield name.removeprefix("code/")


def _registered(package: str = "") -> dict[str, Path]:
    """Return the folders of tasks and algorithms; only those within a package if one is named.

    Every task that params.yaml defines has the same folder.
    """
    names = own_tasks(read_yaml(PARAMS)) if PARAMS.is_file() else {}
    custom = dict.fromkeys(names, FOLDERS.packages[CUSTOM])
    return {
        f"{name}/{key}": _folder(module)
        for name, packages in (
            ("tasks", custom | TASKS.packages),
            ("algorithms", ALGORITHMS.packages),
        )
        for key, module in packages.items()
        if module.startswith(package and f"{package}.")
    }


def _folder(package: str) -> Path:
    """Return the folder of a package as `python -m dopsd` would import it from here.

    Nothing is imported.
    """
    here = Path.cwd().joinpath(*package.split("."))
    if (here / "__init__.py").is_file():
        return here
    try:
        spec = find_spec(package)
    except Exception as error:  # of a plug-in's own code, which this imports
        reason = f"{type(error).__name__}: {error}"
        raise DopsdError(
            f"plug-in {package}: cannot be imported ({reason})", code=Code.PLUGIN_BROKEN
        ) from error
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"{package} is no package", name=package)
    return Path(next(iter(spec.submodule_search_locations))).resolve()


def _is_checkout(root: Path) -> bool:
    """Whether a package lies in a repository, this one or that of an editable installation."""
    return (root.parent / PIPELINE).is_file()


def _link(path: Path, target: Path) -> None:
    if target.is_relative_to(Path.cwd()):
        target = Path(os.path.relpath(target, path.parent))
    if path.is_symlink() and path.readlink() == target:
        return
    _make_room(path, f"a link to {target}")
    path.parent.mkdir(parents=True, exist_ok=True)
    tmp = path.with_name(f".{path.name}.tmp")
    tmp.unlink(missing_ok=True)
    tmp.symlink_to(target)
    tmp.replace(path)


def _write(path: Path, text: str) -> None:
    for link in (path, *path.parents):
        if link.is_symlink():
            link.unlink()
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return
    _make_room(path.parent if path.name == "__init__.py" else path, "a recipe number")
    path.parent.mkdir(parents=True, exist_ok=True)
    tmp = path.with_name(f".{path.name}.tmp")
    tmp.write_text(text, encoding="utf-8")
    tmp.replace(path)


def _make_room(path: Path, entry: str) -> None:
    """Remove a folder of numbers where a link belongs; refuse what is neither number nor link."""
    if path.is_symlink() or not path.exists():
        return
    files = [file for file in (path, *path.rglob("*")) if file.is_file() or file.is_symlink()]
    if not all(map(_is_number, files)):
        raise DopsdError(
            f"{path}: {'a folder' if path.is_dir() else 'a file'} where {entry} belongs; remove it"
            " and run again, or copy projects with their links (cp -a)",
            code=Code.CODE_LINKS,
        )
    if path.is_dir() and entry.startswith("a link"):
        shutil.rmtree(path)


def _is_number(path: Path) -> bool:
    return path.is_file() and bool(
        NUMBER.fullmatch(path.read_text(errors="replace", encoding="utf-8"))
    )
