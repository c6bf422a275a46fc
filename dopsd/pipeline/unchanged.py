"""Check at the end of a stage that its settings and recipes are those of its start.

DVC records both only at the end, as what made the result.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dopsd.config.loading import load_params, read_yaml
from dopsd.core.environment import DVC_STAGE
from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError
from dopsd.pipeline.recipes import FILE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dopsd.config.params import Params

PIPELINE = Path("dvc.yaml")


@contextmanager
def unchanged(path: Path, params: Params) -> Iterator[None]:
    """Fail the stage inside if its sections of the settings, or recipes.yaml, change meanwhile.

    Does nothing outside DVC.

    Args:
        path: Settings file.
        params: Settings as the stage read them.

    Raises:
        DopsdError: if a section or recipes.yaml changed.
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
        raise DopsdError(
            f"{stage}: {', '.join(changed)} changed during the stage, so DVC would record the"
            " result under the new version; no training is lost: run the same command",
            code=Code.CHANGED_DURING_STAGE,
        )


def _recipes() -> bytes:
    return FILE.read_bytes() if FILE.is_file() else b""
