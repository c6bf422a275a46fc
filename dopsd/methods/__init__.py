"""load_method(): the Method behind a name, or behind a variant's; its file dopsd/methods/NAME.py has `build`."""

from __future__ import annotations

from importlib import import_module

from dopsd.config import Params, kind_of
from dopsd.types import Method, Policy, Task


def load_method(name: str, params: Params, task: Task, policy: Policy, seed: int) -> Method:
    """`params` are those of this name (Params.of)."""
    kind = kind_of(name)
    return import_module(f"dopsd.methods.{kind}").build(
        vars(params.method)[kind], params, task, policy, seed
    )
