"""Say what a module is in the words of its docstring."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path


def first_line(module: str) -> str:
    """Return the first line of a module's docstring, without importing it; empty without one."""
    spec = find_spec(module)
    text = Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else ""
    return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
