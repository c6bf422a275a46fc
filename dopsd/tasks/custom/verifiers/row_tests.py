"""Tests of a row: Python code, or a list of lines, which must be able to fail."""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from contextlib import suppress

from dopsd.tasks.custom.verifiers.program_text import parsed_program

LONGEST = 10**6  # characters of tests that are looked at before they run
SPACES = (tokenize.NL, tokenize.NEWLINE, tokenize.ENDMARKER)
DISPLAY = ast.Tuple | ast.List | ast.Set | ast.Dict  # true, whatever is in it
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
LOST = ast.Compare | ast.GeneratorExp | DISPLAY | ast.Assign | ast.AnnAssign | ast.AugAssign
ONLY_TELLS = {"print", "pprint", "all", "any", "bool", "isclose", "allclose", "array_equal"}
ONLY_TELLS |= {"isinstance", "len", "range", "zip", "enumerate", "items"}
NEVER = re.compile("False|None|0|__name__ == '__main__'|'__main__' == __name__")  # true here


def code_in(cell: str) -> str:
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


def fault_of_tests(cell: str) -> str | None:
    """Return why tests test nothing; None if they can fail."""
    code = code_in(cell)
    if len(code) > LONGEST:
        return None
    try:
        tree = parsed_program(code)
        functions = {s.name: s for s in tree.body if isinstance(s, FUNCTION)}
        if any(_can_fail(statement, functions) for statement in tree.body):
            return None
    except SyntaxError as error:
        return f"no Python code (line {error.lineno}: {error.msg})"
    except RecursionError:  # in a tree as deep as Python allows
        return None
    unused = [*functions.keys() - {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}]
    called = f" ({max(unused, key=[*functions].index)} is never called)" if unused else ""
    return f"no assert, raise or call that can fail{called}"


def _can_fail(node: ast.AST, functions: dict[str, FUNCTION]) -> bool:
    """Return whether code, when it runs, asserts, raises, or calls what may do so.

    Args:
        functions: those that the tests define, into which calls are followed.
    """
    parts = ast.iter_child_nodes(node)
    match node:
        case ast.Assert(test):
            names = any(isinstance(part, ast.Name) for part in ast.walk(test))
            return names and not isinstance(test, DISPLAY)
        case ast.Call(ast.Name(name)) if name in functions:
            parts = iter(functions[name].body)
            functions = {key: functions[key] for key in functions.keys() - {name}}
        case ast.Call(ast.Name(name) | ast.Attribute(attr=name)) if name in ONLY_TELLS:
            return False
        case ast.Raise() | ast.Call():
            return True
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():  # run when called
            return bool(getattr(node, "decorator_list", []))
        case ast.If(test) if NEVER.fullmatch(ast.unparse(test)):
            parts = iter(node.orelse)
    is_lost = isinstance(node, LOST)
    return not is_lost and any(_can_fail(part, functions) for part in parts)
