"""Tests of a row: Python code, or a list of lines, which must be able to fail."""

from __future__ import annotations

import ast
import io
import json
import tokenize
from contextlib import suppress

from dopsd.tasks.custom.verifiers.program_text import parsed

LONGEST = 10**6  # characters of tests that are looked at before they run
SPACES = (tokenize.NL, tokenize.NEWLINE, tokenize.ENDMARKER)
DISPLAY = ast.Tuple | ast.List | ast.Set | ast.Dict  # true, whatever is in it


def code_of(cell: str) -> str:
    """Return a cell's code; a list of texts, as MBPP has it, is joined."""
    lines = _json_list(cell) or _python_list(cell)
    return cell if lines is None else "\n".join(lines)


def _json_list(cell: str) -> list[str] | None:
    with suppress(ValueError, RecursionError):
        found = json.loads(cell)
        if isinstance(found, list) and all(isinstance(line, str) for line in found):
            return found
    return None


def _python_list(cell: str) -> list[str] | None:
    """Return the texts of a list as Python or NumPy writes it, which pandas puts into a CSV file.

    NumPy puts no commas between them. Each text is read by itself.
    """
    if cell.strip()[:1] not in ("[", "(") or len(cell) > LONGEST:
        return None
    try:
        words = tokenize.generate_tokens(io.StringIO(cell.strip()).readline)
        inner = [w for w in words if w.type not in SPACES][1:-1]
        texts = [ast.literal_eval(w.string) for w in inner if w.type == tokenize.STRING]
    except (tokenize.TokenError, SyntaxError, ValueError):
        return None
    is_list = all(w.type == tokenize.STRING or w.string == "," for w in inner)
    return texts if texts and is_list and all(isinstance(t, str) for t in texts) else None


def fault(cell: str) -> str | None:
    """Return why tests test nothing; None if they can fail."""
    code = code_of(cell)
    if len(code) > LONGEST:
        return None
    try:
        tree = parsed(code)
        if any(map(_can_fail, tree.body)):
            return None
    except SyntaxError as error:
        return f"no Python code (line {error.lineno}: {error.msg})"
    except RecursionError:  # in a tree as deep as Python allows
        return None
    functions = [s.name for s in tree.body if isinstance(s, ast.FunctionDef)]
    called = f" ({functions[-1]} is never called)" if functions else ""
    return f"no assert, raise or call by itself{called}"


def _can_fail(node: ast.AST) -> bool:
    """Return whether code, when it runs, asserts, raises or calls something but print."""
    match node:
        case ast.Assert():
            return not isinstance(node.test, ast.Constant | DISPLAY)
        case ast.Call():
            return not (isinstance(node.func, ast.Name) and node.func.id == "print")
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():  # run when called
            return bool(getattr(node, "decorator_list", []))
        case ast.Expr(value=ast.BoolOp(values=values)):  # `f(1) == 2 or fail()`
            return any(_can_fail(ast.Expr(value)) for value in values)
        case ast.Expr(value=ast.Compare() | ast.Tuple() | ast.List() | ast.Set() | ast.Dict()):
            return False  # nobody looks at the result
    return isinstance(node, ast.Raise) or any(map(_can_fail, ast.iter_child_nodes(node)))
