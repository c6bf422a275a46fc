"""Runs of the algorithms in examples/plugin, which need not be installed for them."""

import tomllib
from dataclasses import replace
from unittest import mock

from conftest import ROOT, write_params

from dopsd.algorithms.registry import ALGORITHMS
from dopsd.config.loading import load_params
from dopsd.core.paths import RunKey
from dopsd.training.run_settings import RunSettings
from dopsd.training.trainer import Trainer

FOLDER = ROOT / "examples/plugin"
METADATA = tomllib.loads((FOLDER / "pyproject.toml").read_text())
PACKAGES = METADATA["project"]["entry-points"]["dopsd.algorithms"]


def plugin_run(method: str, sections: dict | None = None, **changes: object) -> RunSettings:
    """The toy project's run of trace_rl, with another algorithm and changes of its settings."""
    write_params(**sections or {})
    run = load_params().run("sudoku", "trace_rl", 0)
    with mock.patch.dict(ALGORITHMS.packages, PACKAGES):
        kind = ALGORITHMS.config_class(method)
    values = run.algorithm.model_dump() | {"kl_weight": kind().kl_weight} | changes
    algorithm = kind.model_validate(values)
    return replace(run, key=RunKey("sudoku", method, 0), algorithm=algorithm)


def plugin_loop(run: RunSettings) -> Trainer:
    """A loop before its first collect."""
    from accelerate import Accelerator

    with mock.patch.dict(ALGORITHMS.packages, PACKAGES):
        return Trainer(run, Accelerator(cpu=True))
