"""Identify a piece of work by its settings, its files and the recipe numbers of its code.

A package declares `RECIPE` in its `__init__.py`, and a stage in its file; 1 if it declares none.
The number is raised when results change on purpose.
"""

import ast
import hashlib
import json
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dopsd.core.errors import Code


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


def recipe(path: Path) -> int:
    """Return the number that a folder's `__init__.py`, or a file, declares; 1 if it has none."""
    file = path / "__init__.py" if path.is_dir() else path
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            value = ast.unparse(node.value)
            if "RECIPE" not in map(ast.unparse, targets):
                continue
            if not value.isdecimal() or not int(value):
                raise Code.PLUGIN_BROKEN.error(
                    f"{file}: RECIPE = {value}: expected a whole number of 1 or more"
                )
            return int(value)
    return 1


def folder_of(package: str) -> Path:
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
        raise Code.PLUGIN_BROKEN.error(
            f"plug-in {package}: cannot be imported ({reason})"
        ) from error
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"{package} is no package", name=package)
    return Path(next(iter(spec.submodule_search_locations))).resolve()


def fingerprint(sections: dict[str, Any], files: Sequence[Path], *packages: str) -> str:
    """Return 16 hex digits that identify a piece of work by its settings, data and code."""
    missing = [path for path in files if not path.is_file()]
    if missing:
        raise Code.NOT_PREPARED.error(
            f"{missing[0]}: no such file; run `dopsd prepare` (or `dvc repro`)"
        )
    parts = [json.dumps(sections, sort_keys=True)]
    parts += [f"{path.name} {sha256(path)}" for path in files]
    parts += [f"{name} {recipe(folder_of(name))}" for name in packages]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def checkout_digest(root: Path) -> str:
    """Return a digest of 12 hex digits of the Python files of a checkout's dopsd/ and flows/."""
    digest = hashlib.sha256()
    for folder in ("dopsd", "flows"):
        for path in sorted((root / folder).rglob("*.py")):
            digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def key_from(*parts: str | int) -> int:
    """Return a signed 64-bit key of names and numbers."""
    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)
