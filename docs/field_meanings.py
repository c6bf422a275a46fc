"""What a setting means, read from the class of its section.

The meaning of a field is its `Field(description=...)`, or else the comment on its lines, or else
the comment lines right above it; a class inherits the meanings of the classes that it derives from.
"""

from __future__ import annotations

import ast
import inspect
import io
import tokenize
from functools import cache
from importlib import import_module
from pathlib import Path

from dopsd.core.settings import Section

TO_TOOLS = ("noqa", "type:", "pragma")  # how comments begin that say nothing to people


@cache
def source_of(module: str) -> tuple[ast.Module, list[str], dict[int, str]]:
    """Return a module's tree, its lines, and its comments by line number."""
    text = Path(inspect.getfile(import_module(module))).read_text()
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT and not token.string.lstrip("# ").startswith(TO_TOOLS)
    }
    return ast.parse(text), text.splitlines(), comments


def comment_of(kind: type, field: str) -> str:
    """Return the comment on the lines that define a field, or else the one right above them."""
    tree, lines, comments = source_of(kind.__module__)
    classes = [c for c in tree.body if isinstance(c, ast.ClassDef) and c.name == kind.__name__]
    for node in (node for c in classes for node in c.body if isinstance(node, ast.AnnAssign)):
        if isinstance(node.target, ast.Name) and node.target.id == field:
            start, end = node.lineno, (node.end_lineno or node.lineno) + 1
            while lines[start - 2].lstrip().startswith("#"):
                start -= 1
            beside = [comments[n] for n in range(node.lineno, end) if n in comments]
            above = [comments[n] for n in range(start, node.lineno) if n in comments]
            return " ".join(beside or above)
    return ""


def family(kind: type[Section]) -> list[type[Section]]:
    """Return a section's class and those that it derives from, nearest first."""
    return [base for base in kind.__mro__ if issubclass(base, Section) and base is not Section]


def meaning(kind: type[Section], field: str) -> str:
    """Return a field's description, or its comment in the class or in one that it derives from."""
    texts = (comment_of(base, field) for base in family(kind))
    return kind.model_fields[field].description or next(filter(None, texts), "")


def intro(kind: type[Section]) -> str:
    """Return the docstring of a section's class, or of the nearest one that it derives from."""
    return next((inspect.cleandoc(base.__doc__) for base in family(kind) if base.__doc__), "")
