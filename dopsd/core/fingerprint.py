"""Identify a piece of work by its settings, its files and the code that it imports."""

from __future__ import annotations

import ast
import hashlib
import json
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError

if TYPE_CHECKING:
    from collections.abc import Sequence


def sha256(path: Path) -> str:
    """Return the hex digest of a file.

    The file is read in chunks, and once only while it does not change: 8B weights take 16 GB.
    """
    status = path.stat()
    return _sha256(path.resolve(), status.st_size, status.st_mtime_ns, status.st_ino)


@cache
def _sha256(path: Path, *_: int) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _spec(module: str) -> ModuleSpec | None:
    """Find a module without running the packages around it, which find_spec would."""
    parent = module.rpartition(".")[0]
    if not parent:
        return find_spec(module)
    package = _spec(parent)
    places = package and package.submodule_search_locations
    return PathFinder.find_spec(module, list(places)) if places else None


def _file(module: str) -> Path | None:
    spec = _spec(module)
    return Path(spec.origin) if spec and spec.origin else None


def _source(module: str) -> Path:
    path = _file(module)
    if path is None:
        raise ModuleNotFoundError(f"{module}: no file of that module")
    return path


def imported(
    path: Path, with_types: bool = False, packages: tuple[str, ...] = ("dopsd",)
) -> set[str]:
    """Return the modules of these packages that a file imports, anywhere in it.

    Args:
        path: a Python file.
        with_types: also count imports for type checkers alone (`if TYPE_CHECKING:`).
        packages: names of the top-level packages that count.
    """
    names = _imports(path.read_text(encoding="utf-8"), with_types)
    in_packages = {name for name in names if name.partition(".")[0] in packages and "." in name}
    return {name for name in in_packages if _is_module(name)}


@cache
def _imports(text: str, with_types: bool) -> frozenset[str]:
    names: set[str] = set()
    pending: list[ast.AST] = [ast.parse(text)]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif with_types or not _is_for_types(node):
            pending += ast.iter_child_nodes(node)
    return frozenset(names)


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


@cache
def _is_module(name: str) -> bool:
    return _file(name) is not None


@cache
def closure(*modules: str) -> tuple[str, ...]:
    """Return these modules and all that they import from dopsd and their own packages, sorted.

    Modules that are loaded by name (tasks, algorithms) must be passed explicitly.
    """
    packages = ("dopsd", *(module.partition(".")[0] for module in modules))
    seen: set[str] = set()
    pending = list(modules)
    while pending:
        name = pending.pop()
        if name not in seen:
            seen.add(name)
            pending += imported(_source(name), packages=packages) - seen
    return tuple(sorted(seen))


def sources(*modules: str) -> dict[str, Path]:
    """Return the file of each module in the closure."""
    return {name: _source(name) for name in closure(*modules)}


def code_digest(path: Path) -> str:
    """Return a hex digest of what a Python file computes.

    Comments, docstrings and layout do not change the digest.
    """
    return _code_digest(path.read_text(encoding="utf-8"))


@cache
def _code_digest(text: str) -> str:
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (
            ast.get_docstring(node) is not None
        ):
            del node.body[0]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()


def fingerprint(sections: dict[str, Any], files: Sequence[Path], *modules: str) -> str:
    """Return 16 hex digits that identify a piece of work by its settings, data and code.

    Args:
        sections: settings that decide the result, as JSON values.
        files: data files that decide the result.
        *modules: entry modules; everything that they import counts.

    Raises:
        DopsdError: if a file is missing.
    """
    missing = [path for path in files if not path.is_file()]
    if missing:
        raise DopsdError(
            f"{missing[0]}: no such file; run `dopsd prepare` (or `dvc repro`)",
            code=Code.NOT_PREPARED,
        )
    parts = [json.dumps(sections, sort_keys=True)]
    parts += [f"{path.name} {sha256(path)}" for path in files]
    parts += [f"{name} {code_digest(path)}" for name, path in sources(*modules).items()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def checkout_digest(root: Path) -> str:
    """Return a digest of 12 hex digits of the Python files of a checkout's dopsd/ and flows/."""
    digest = hashlib.sha256()
    for folder in ("dopsd", "flows"):
        for path in sorted((root / folder).rglob("*.py")):
            digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]
