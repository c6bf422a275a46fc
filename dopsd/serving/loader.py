"""The model behind `mlflow models serve -m models:/dopsd-sudoku@champion --env-manager local`.

MLflow imports this module and calls `_load_pyfunc`. Settings, adapter, base and instructions must
be those of the run: their digests are checked before anything is loaded.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dopsd.api.settings import run_settings
from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError
from dopsd.core.files import read_json
from dopsd.core.fingerprint import sha256
from dopsd.core.progress import log
from dopsd.models.adapter_files import shape_of
from dopsd.models.files import base_files
from dopsd.models.llm_policy import load_policy
from dopsd.serving.model import ServedModel
from dopsd.tracking.flavour import SERVED, SETTINGS

if TYPE_CHECKING:
    from dopsd.models.config import ModelConfig

BASE = "DOPSD_BASE"  # environment variable: folder of the base, if it is not where the run had it
SERVER = "mlflow.pyfunc.scoring_server.app"  # in sys.modules: the server's process loads the model


def _load_pyfunc(path: str) -> ServedModel:
    """Load the model for MLflow; a refusal ends the server's process with one line."""
    try:
        return load(Path(path))
    except DopsdError as error:
        if SERVER not in sys.modules:
            raise
        log(f"dopsd: {error.coded}")
        raise SystemExit(error.exit_code) from None


def load(folder: Path) -> ServedModel:
    """Load a published checkpoint with its base.

    Args:
        folder: the artifacts of a registered version.

    Raises:
        DopsdError: if settings, adapter, base or instructions are not those that were published.
    """
    served = read_json(folder / SERVED, "dopsd publish")
    _check_files(folder, served["settings"], "run `dopsd publish` again")
    run = run_settings(folder / SETTINGS)
    model = run.model.model_copy(update={"path": os.environ.get(BASE) or run.model.path})
    _check_files(folder, served["adapter"], "copy the file from the run's folder best/ again")
    _check_base(model, served["base"])
    _check_files(Path(), served["files"], "start the server in the project's folder")
    policy = load_policy(model, shape_of(folder), 0, None)
    policy.load(folder)
    return ServedModel(policy, run)


def _check_base(model: ModelConfig, digests: dict[str, str]) -> None:
    """Compare the base's files with those of the run: none may differ, be missing or be new."""
    advice = f"start the server in the project's folder, or set {BASE} to the base of the run"
    _check_files(Path(model.path), digests, advice)
    if added := [path for path in base_files(model) if path.name not in digests]:
        raise DopsdError(
            f"{added[0]}: the base of the run has no such file; {advice}", code=Code.SERVED_DIFFERS
        )


def _check_files(folder: Path, digests: dict[str, str], advice: str) -> None:
    for name, digest in digests.items():
        path = folder / name
        if not path.is_file():
            raise DopsdError(
                f"{path}: no such file (from {Path.cwd()}); {advice}", code=Code.SERVED_DIFFERS
            )
        if sha256(path) != digest:
            raise DopsdError(
                f"{path}: does not match the digest of the published run; {advice}",
                code=Code.SERVED_DIFFERS,
            )
