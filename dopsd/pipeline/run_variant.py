"""Which method a finished run is by its settings: GDSD, for example, where espo has its loss."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from pydantic import ValidationError

from dopsd.algorithms.registry import ALGORITHMS
from dopsd.algorithms.variants import variant_of
from dopsd.core.errors import DopsdError
from dopsd.core.files import WORK
from dopsd.training.run_identity import record_of, scratch_folder

if TYPE_CHECKING:
    from dopsd.algorithms.common.config import AlgorithmConfig
    from dopsd.training.run_settings import RunSettings


def variant_of_run(run: RunSettings, fingerprint: str) -> str:
    """Return the name of the method that a finished run's settings are; empty: the algorithm's.

    It is empty too where the settings are not known: training left no record, and params.yaml has
    other ones.

    Args:
        run: the run with the settings of params.yaml.
        fingerprint: name of the folder in work/ that trained it, as train.json has it.
    """
    config = _trained_with(run, fingerprint)
    return variant_of(run.kind, config) if config else ""


def _trained_with(run: RunSettings, fingerprint: str) -> AlgorithmConfig | None:
    """Return the settings of the run's algorithm; None where they are not known."""
    recorded = record_of(WORK / fingerprint).get("settings", {}).get(run.kind)
    if recorded is not None:
        with suppress(ValidationError):  # of a release with other keys
            config: AlgorithmConfig = ALGORITHMS.config_class(run.kind).model_validate(recorded)
            return config
        return None
    with suppress(DopsdError):  # without the data nobody can tell
        return run.algorithm if fingerprint == scratch_folder(run).name else None
    return None
