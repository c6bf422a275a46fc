"""Which modules of dopsd a file imports, and all that they import, without running any."""

import ast
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path


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


@cache
def _source(module: str) -> Path:
    path = _file(module)
    if path is None:
        raise ModuleNotFoundError(f"{module}: no file of that module")
    return path


@cache
def imported(
    path: Path, with_types: bool = False, packages: tuple[str, ...] = ("dopsd",)
) -> frozenset[str]:
    """Return the modules of these packages that a file imports, perhaps for types alone."""
    names = _imports(path.read_text(encoding="utf-8"), with_types)
    in_packages = {name for name in names if name.partition(".")[0] in packages and "." in name}
    return frozenset(name for name in in_packages if _is_module(name))


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
    """Return these modules and what they import; one that is loaded by name must be passed."""
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
