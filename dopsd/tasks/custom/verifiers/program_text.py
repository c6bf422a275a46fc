"""Find the Python program in an answer, and run a row's tests on it.

The sandbox runs the text of this file: answers are compiled there alone, and it imports nothing but
the standard library. A program is a list of cells, which run one after the other in one namespace.
The rule is in docs/own-task.md.
"""

from __future__ import annotations
import __future__

import ast
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

LONGEST = 2 * 10**5  # characters of an answer in which a program is looked for
MOST_TRIES, MOST_LINES = 500, 500  # texts that are compiled to find parts, and lines of one
MOST_BLOCKS, MOST_ENDS = 100, 20  # blocks that are looked at, and fences at which one may end
# a fence that opens a block: at the end of a line but for the name of a language
OPENING = re.compile(r"(?:(?<!`)(`{3,})|^\s*(?:[-*+]\s|\d+[.)]\s)?\s*(~{3,}))\s*([^\s`]*)[^`]*$")
INLINE = re.compile(r"(?<!`)(`{3,})(?!`)\s*(?:i?py\w*\s)?(.+?)(?<!`)\1(?!`)", re.IGNORECASE)
LABEL = re.compile(r"\s*(?:python|py)3?\s*\n", re.IGNORECASE)  # of a page that was copied
PROMPT = re.compile(r"\s*(?:>>>|\.\.\.)(?: |$)")
COMPILES, BINDS, DEFINES = 1, 2, 3
FUTURE = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)


class Cell(NamedTuple):
    """A text that compiles.

    Attributes:
        text: the text.
        rank: DEFINES if it defines a function or class, BINDS if it binds another name.
    """

    text: str
    rank: int


def parsed(text: str) -> ast.Module:
    """Return the tree of a text that compiles.

    Raises:
        SyntaxError: if it does not, for whatever reason; its `lineno` is set.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(tree := ast.parse(text), "program", "exec", dont_inherit=True)
    except SyntaxError as error:
        error.lineno = error.lineno or 1
        raise
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        raise SyntaxError(str(error) or "nested too deeply", ("program", 1, 1, "")) from error
    return tree


def program_of(answer: str, before: str = "") -> list[Cell]:
    """Return the cells of the program in an answer; the answer itself where nothing compiles.

    Args:
        answer: a text, such as a program or Markdown with a program in it.
        before: code that is run first. An indented text may be the body of its last function.
    """
    text = re.sub(r"\r\n?", "\n", answer).removeprefix("\ufeff")
    text = text[label.end() :] if (label := LABEL.match(text)) else text
    finders = (_whole, _blocks, _parts, _session) if len(text) <= LONGEST else ()
    best: list[Cell] = []
    for find in finders:
        cells = list(find(text.split("\n"), before))
        best = max(best, cells, key=lambda cells: max((c.rank for c in cells), default=0))
        if any(cell.rank == DEFINES for cell in best):
            break
    return _needed(best) or [Cell(text, 0)]


def _needed(cells: list[Cell]) -> list[Cell]:
    """Drop cells that bind no name, and those after the last that defines a function or class."""
    ranks = [cell.rank for cell in cells]
    end = len(ranks) - ranks[::-1].index(DEFINES) if DEFINES in ranks else len(ranks)
    return [cell for cell in cells[:end] if cell.rank > COMPILES] or cells[-1:]


def _whole(lines: list[str], before: str) -> Iterator[Cell]:
    """Yield the text, unless it has a fence of tildes, which are operators to Python."""
    if not any(line.startswith("~~~") for line in lines):
        yield from _cell(lines, before)


def _cell(lines: list[str], before: str = "") -> Iterator[Cell]:
    """Yield what compiles: the lines less their indentation, or after `before`; or nothing."""
    for text in [_flush(lines), *(["\n".join([before, *lines])] if before.strip() else [])]:
        with suppress(SyntaxError):
            tree = parsed(text := _without_words(text))
            if rank := _rank(tree):
                yield Cell(text, rank)
                return


def _without_words(text: str) -> str:
    """Return a program without lines such as `Solution` and `[BEGIN]`: names and nothing else.

    Raises:
        SyntaxError: if it is none.
    """
    lines = text.split("\n")
    for statement in parsed(text).body:
        match statement:
            case ast.Expr(ast.Name() | ast.List([ast.Name()])) | ast.AnnAssign(value=None):
                if lines[statement.lineno - 1].strip() == ast.unparse(statement):
                    lines[statement.lineno - 1] = ""
    return "\n".join(lines)


def _rank(tree: ast.Module) -> int:
    """Return what a program does to its namespace; 0 for one without a statement."""
    nodes = [node for node in ast.walk(tree) if not isinstance(node, ast.Module)]
    if any(isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) for n in nodes):
        return DEFINES
    if any(isinstance(n, ast.Assign) and isinstance(n.value, ast.Lambda) for n in nodes):
        return DEFINES
    is_bound = any(isinstance(n, ast.alias | ast.Store) for n in nodes)
    return BINDS if is_bound else COMPILES * bool(nodes)


def _flush(lines: list[str]) -> str:
    """Return lines as a text without the indentation of the first of them."""
    indent = next((_indent(line) for line in lines if line.strip()), "")
    return "\n".join(line.removeprefix(indent) for line in lines)


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _session(lines: list[str], before: str = "") -> Iterator[Cell]:
    """Yield the code after the prompts of an interactive session."""
    if prompts := [(line, found) for line in lines if (found := PROMPT.match(line))]:
        yield from _cell([line[found.end() :] for line, found in prompts])


def _blocks(lines: list[str], before: str, depth: int = 3) -> Iterator[Cell]:
    """Yield the cells of fenced blocks whose label is Python's, or that have none."""
    n, count = 0, 0
    while n < len(lines) and count < MOST_BLOCKS:
        for inline in INLINE.finditer(lines[n]):
            yield from _cell([inline[2]])
        opening, n = OPENING.search(INLINE.sub("", lines[n])), n + 1
        if opening and depth:
            count += 1
            ends = list(islice(_ends(lines, n, opening[1] or opening[2]), MOST_ENDS))
            contents = [[*lines[n:end], *rest] for end, rest, _ in ends]
            cells, found = _block(contents, opening[3], before)
            yield from cells or _blocks(contents[0], before, depth - 1)
            n = ends[found][2]


def _block(contents: list[list[str]], label: str, before: str) -> tuple[list[Cell], int]:
    """Return the cells of a block, and which of its possible contents they are.

    That is the first that compiles. If none does, blocks may be within the first.
    """
    if not label or label.lower().lstrip("{.").startswith(("py", "ipy")):
        for find in (_cell, _session):
            for n, content in enumerate(contents):
                if cells := list(find(content, before)):
                    return cells, n
    return [], 0


def _ends(lines: list[str], start: int, fence: str) -> Iterator[tuple[int, list[str], int]]:
    """Yield where a block may end: at closing fences, those of the next blocks, the text's end.

    Each comes with what its line has before the fence, and the line after the block.
    """
    closing = re.compile(rf"{fence[0]}{{{len(fence)},}}\s*$")
    for n in range(start, len(lines)):
        if (found := closing.search(lines[n])) and not lines[n].lstrip().startswith("#"):
            yield n, [rest] if (rest := lines[n][: found.start()]).strip() else [], n + 1
        elif lines[n].lstrip().startswith(fence):
            yield n, [], n
    yield len(lines), [], len(lines)


def _parts(lines: list[str], before: str) -> Iterator[Cell]:
    """Yield the runs of lines that compile, from the top, each as long as can be."""
    start, tries = 0, MOST_TRIES
    while start < len(lines) and tries:
        end = _dedented(lines, start)
        while start < end and tries:
            tries -= 1
            try:
                parsed(_flush(lines[start:end]))
            except SyntaxError as error:
                end = min(end - 1, start + (error.lineno or 1) - 1)
            else:
                yield from _cell(lines[start:end])
                break
        start = max(end, start + 1)


def _dedented(lines: list[str], start: int) -> int:
    """Return the next line that is indented less than this one, or that is too far away."""
    indent, end = _indent(lines[start]), min(len(lines), start + MOST_LINES)
    outside = (n for n in range(start, end) if lines[n].strip())
    return next((n for n in outside if not lines[n].startswith(indent)), end)


def run(answer: str, before: str, tests: str, passed: bytes) -> None:
    """Run code that stands before a program, the program, its tests, and write that they passed.

    A program may exit: its tests run all the same. `before` may be the beginning of a function,
    which compiles only together with its body; then it does not run by itself.
    """
    write, space = os.write, dict[str, Any]()  # as HumanEval: __name__ is not __main__
    checks = compile(tests, "tests", "exec", dont_inherit=True)
    first = compile("", "before", "exec", dont_inherit=True)
    with suppress(SyntaxError):
        first = compile(parsed(before), "before", "exec", dont_inherit=True)
    flags = first.co_flags & FUTURE
    exec(first, space)
    cells = program_of(answer, before)
    defines = any(cell.rank == DEFINES for cell in cells)
    for cell in cells:  # one that defines nothing may be an example of use
        with suppress(SystemExit, *([Exception] if defines and cell.rank < DEFINES else [])):
            exec(compile(cell.text, "program", "exec", flags, dont_inherit=True), space)
    exec(checks, space)
    write(1, passed)
