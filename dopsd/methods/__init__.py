"""load_method(): the Method behind a name; its file dopsd/methods/NAME.py has `build`."""

from __future__ import annotations

from importlib import import_module

from dopsd.config import Params
from dopsd.types import Method, Policy, Task


def load_method(name: str, params: Params, task: Task, policy: Policy, seed: int) -> Method:
    return import_module(f"dopsd.methods.{name}").build(vars(params.method)[name], params, task, policy, seed)
