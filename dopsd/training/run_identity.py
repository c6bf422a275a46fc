"""run.json in a training folder: the code that learnt what is in it."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from typing import TYPE_CHECKING, Any

from dopsd.algorithms.registry import ALGORITHMS
from dopsd.core.fingerprint import code_digest, sources
from dopsd.tasks.registry import TASKS
from dopsd.training.resuming import object_of, record_of
from dopsd.training.run_settings import scratch_folder

if TYPE_CHECKING:
    from pathlib import Path

    from dopsd.training.run_settings import RunSettings

UNKNOWN = "unknown"  # code of a folder without run.json


@cache
def code_of(task: str, algorithm: str) -> dict[str, str]:
    """Digests of the modules that train this algorithm on this task; comments, docstrings and
    layout do not count.
    """
    modules = (
        "dopsd.training.train",
        TASKS.file(task, "task"),
        ALGORITHMS.file(algorithm, "algorithm"),
    )
    return {module: code_digest(path) for module, path in sources(*modules).items()}


def digest(code: dict[str, str]) -> str:
    return (
        hashlib.sha256(json.dumps(code, sort_keys=True).encode()).hexdigest()[:16]
        if code
        else UNKNOWN
    )


def codes(scratch: Path) -> dict[str, str]:
    """What a result says of the code that made it: that of its last update, and that of its
    first.
    """
    history = record_of(scratch)["history"]
    return {"code": history[-1]["code"], "first_code": history[0]["code"]}


def first_code(run: RunSettings) -> str:
    """That of a run's first update: of what is in training, else of what has ended, else of what
    would begin.
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
    """Whether a train.json is of these settings and of this code, or of older code that a person
    has accepted.
    """
    name = scratch_folder(run).name
    return published.get("fingerprint") == name and published.get("code") == digest(
        code_of(run.key.task, run.kind)
    )
