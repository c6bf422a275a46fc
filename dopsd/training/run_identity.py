"""Identify the code that trained a run: digests of its modules, recorded in run.json."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from typing import TYPE_CHECKING, Any

from dopsd.algorithms.registry import ALGORITHMS
from dopsd.core.fingerprint import code_digest, sources
from dopsd.tasks.registry import module_of
from dopsd.training.resuming import object_of, record_of
from dopsd.training.run_settings import scratch_folder

if TYPE_CHECKING:
    from pathlib import Path

    from dopsd.training.run_settings import RunSettings

UNKNOWN = "unknown"  # stands for the code of a folder without run.json


@cache
def code_of(task: str, algorithm: str) -> dict[str, str]:
    """Return digests of the modules that train this algorithm on this task, by module.

    Comments, docstrings and layout do not count.
    """
    modules = (
        "dopsd.training.train",
        module_of(task),
        ALGORITHMS.file(algorithm, "algorithm"),
    )
    return {module: code_digest(path) for module, path in sources(*modules).items()}


def digest(code: dict[str, str]) -> str:
    """Return one digest of 16 hex digits for all modules; UNKNOWN without modules."""
    return (
        hashlib.sha256(json.dumps(code, sort_keys=True).encode()).hexdigest()[:16]
        if code
        else UNKNOWN
    )


def codes(scratch: Path) -> dict[str, str]:
    """Return the digests of the code of a run's last update (`code`) and first (`first_code`)."""
    history = record_of(scratch)["history"]
    return {"code": history[-1]["code"], "first_code": history[0]["code"]}


def first_code(run: RunSettings) -> str:
    """Return the digest of the code of a run's first update.

    It comes from the run in training, else from the finished run, else from the current code.
    """
    history = record_of(scratch_folder(run)).get("history")
    if history:
        code: str = history[0]["code"]
        return code
    published = object_of(run.key.folder / "train.json")
    return (
        published["first_code"]
        if is_current(run, published)
        else digest(code_of(run.key.task, run.kind))
    )


def is_current(run: RunSettings, published: dict[str, Any]) -> bool:
    """Return whether a train.json has the fingerprint and the last code of this run.

    Args:
        run: the run.
        published: the contents of train.json.
    """
    name = scratch_folder(run).name
    return published.get("fingerprint") == name and published.get("code") == digest(
        code_of(run.key.task, run.kind)
    )
