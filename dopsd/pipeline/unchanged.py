"""Check at the end of a stage that its settings and code are those of its start.

DVC records both only at the end, as what made the result.
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dopsd.config.loading import load_params, read_yaml
from dopsd.core.environment import DVC_STAGE
from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError
from dopsd.core.fingerprint import sha256

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dopsd.config.params import Params

PIPELINE = Path("dvc.yaml")


@contextmanager
def unchanged(path: Path, params: Params) -> Iterator[None]:
    """Fail the stage inside if its sections of the settings, or its code, change meanwhile.

    Does nothing outside DVC.

    Args:
        path: Settings file.
        params: Settings as the stage read them.

    Raises:
        DopsdError: if a section or a file changed.
    """
    stage = os.environ.get(DVC_STAGE, "").partition("@")[0]
    declared = read_yaml(PIPELINE)["stages"].get(stage, {}) if stage and PIPELINE.is_file() else {}
    sections = {key.partition(".")[0] for key in declared.get("params", [])}
    original_digests = _code(declared)
    yield
    current_params = load_params(path) if sections else params
    changed = [
        f"{path} ({name})"
        for name in sorted(sections)
        if vars(current_params)[name] != vars(params)[name]
    ]
    changed += sorted(
        name for name, digest in _code(declared).items() if original_digests.get(name) != digest
    )
    if changed:
        raise DopsdError(
            f"{stage}: {', '.join(changed)} changed during the stage, so DVC would record the"
            " result under the new version; no training is lost: run the same command",
            code=Code.CHANGED_DURING_STAGE,
        )


def _code(declared: dict[str, list[str]]) -> dict[str, str]:
    """Return digests of the code that a stage of dvc.yaml depends on; a template matches all."""
    names = [
        re.sub(r"\$\{.*?\}", "*", name)
        for name in declared.get("deps", [])
        if name.startswith("code/")
    ]
    paths = [path for name in names for path in Path().glob(name)]
    files = [file for path in paths for file in ([path] if path.is_file() else path.rglob("*.py"))]
    return {path.as_posix(): sha256(path) for path in sorted(files)}
