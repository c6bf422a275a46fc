"""Find the Python program in an answer, and run a row's tests on it.

The sandbox runs the text of this file: answers are compiled there alone, and it imports nothing but
the standard library. A program is a list of cells, which run one after the other in one namespace.
The rule is in docs/own-task.md.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from symtable import symtable
from typing import Any, NamedTuple

LONGEST = 2 * 10**5  # characters of an answer in which a program is looked for
MOST_TRIES, MOST_LINES = 500, 500  # texts that are compiled to find parts, and lines of one
MOST_ENDS = 20  # fences at which a block may end
# opens a block of Python, or of what it does not say
OPENING = re.compile(r"(?<![`~])(`{3,}|~{3,})\s*(?:\{?\.?i?py[^`]*)?$", re.IGNORECASE)
PROMPT = re.compile(r"\s*(?:>>>|\.\.\.)(?: |$)")
WORD = re.compile(r"(?:~{3,})?\[?\w+\]?(?:: \w+)?\s*")  # `Solution` or `[BEGIN]`, which is no code
FUTURE = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)


class _Cell(NamedTuple):
    """A text that compiles, with the global names that it defines, imports, and uses without."""

    tree: ast.Module
    defines: set[str]
    imports: set[str]
    needs: set[str]


def parsed_program(text: str) -> ast.Module:
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


def cell_of(text: str) -> _Cell:
    """Return the cell of a text, without lines that are a word.

    Raises:
        SyntaxError: if it does not compile.
    """
    tree, lines, tables = (
        parsed_program(text),
        text.split("\n"),
        [symtable(text, "program", "exec")],
    )
    idle = [s for s in tree.body if isinstance(s, ast.Expr | ast.AnnAssign)]
    words = {s for s in idle if WORD.fullmatch(lines[s.lineno - 1])}
    tree.body = [s for s in tree.body if s not in words]
    for table in tables:
        tables += table.get_children()
    names = [s for table in tables for s in table.get_symbols() if s.is_global()]
    defines = {s.get_name() for s in names if s.is_assigned()}
    imports = {s.get_name() for s in names if s.is_imported()}
    uses = {s.get_name() for s in names if s.is_referenced()}
    return _Cell(tree, defines, imports, uses - defines - imports)


def program_of(answer: str, before: str, tests: _Cell) -> tuple[list[_Cell], list[_Cell]]:
    """Return the cells of an answer that tests need, after those that these need in turn.

    Args:
        answer: a text, such as a program or Markdown with a program in it.
        before: code that is run first. An indented text may be the body of its last function.

    Returns:
        The cells that help, and the program; this is the last that is found if tests need none.

    Raises:
        SyntaxError: if none is found, and the answer does not compile.
    """
    text, last = re.sub(r"\r\n?", "\n", answer).removeprefix("\ufeff"), list[_Cell]()
    for find in (_whole, _blocks, _parts) if len(text) <= LONGEST else ():
        cells = list(find(text.split("\n"), before))
        order = list(main := _homes(tests, cells, len(cells)))
        for at in order:
            order += _homes(cells[at], cells, at) - {*order}
        if main:
            return [cells[n] for n in sorted({*order} - main)], [cells[n] for n in sorted(main)]
        last = last or cells[-1:]
    return [], last or [cell_of(text)]


def _homes(cell: _Cell, cells: list[_Cell], at: int) -> set[int]:
    """Return the cells that define what one at a place needs: the nearest above, else below.

    Imports count for names that no cell defines.
    """
    places = [*range(at - 1, -1, -1), *range(at + 1, len(cells))]
    found = set()
    for name in cell.needs:
        homes = [n for n in places if name in cells[n].defines]
        found.update((homes or [n for n in places if name in cells[n].imports])[:1])
    return found


def _whole(lines: list[str], before: str) -> Iterator[_Cell]:
    """Yield what binds a name: the lines, or those after `before`, or those of a session."""
    prompts = [(line, found) for line in lines if (found := PROMPT.match(line))]
    session = "\n".join(line[found.end() :] for line, found in prompts)
    after = "\n".join([before, *lines]) if before.strip() else ""
    for text in (_flush(lines), after, session):
        with suppress(SyntaxError):
            if (cell := cell_of(text)).defines or cell.imports:
                yield cell
                return


def _flush(lines: list[str]) -> str:
    """Return lines as a text without what indents the first, which may be the mark of a quote."""
    indent = next(filter(str.strip, lines), "")
    indent = indent[: len(indent) - len(indent.removeprefix("> ").lstrip())]
    return "\n".join("" if line == indent.rstrip() else line.removeprefix(indent) for line in lines)


def _blocks(lines: list[str], before: str) -> Iterator[_Cell]:
    """Yield the cells of fenced blocks whose label is Python's, or that have none."""
    after, tries = 0, MOST_TRIES
    for n, line in enumerate(lines):
        opening = OPENING.search(line) if n >= after and tries > 0 else None
        contents = _contents(lines, n + 1, opening[1]) if opening else iter(())
        for content, end in islice(contents, MOST_ENDS):
            tries -= 1
            if cells := list(_whole(content, before)):
                yield from cells
                after = end
                break


def _contents(lines: list[str], start: int, fence: str) -> Iterator[tuple[list[str], int]]:
    """Yield what a block may hold, and the line after it.

    It ends at a fence, which may be at a line's end or open the next block, or with the text.
    """
    for n in range(start, len(lines)):
        if (line := lines[n].rstrip()).endswith(fence):
            yield [*lines[start:n], line.rstrip(fence[0])], n + 1
        elif line.lstrip(" >").startswith(fence):
            yield lines[start:n], n
    yield lines[start:], len(lines)


def _parts(lines: list[str], before: str) -> Iterator[_Cell]:
    """Yield the runs of lines that compile, from the top, each as long as can be."""
    start, tries = 0, MOST_TRIES
    while start < len(lines) and tries:
        end = min(len(lines), start + MOST_LINES)
        while start < end and tries:
            tries -= 1
            try:
                parsed_program(_flush(lines[start:end]))
            except SyntaxError as error:
                end = min(end - 1, start + (error.lineno or 1) - 1)
            else:
                yield from _whole(lines[start:end], "")
                break
        start = max(end, start + 1)


def run(answer: str, before: str, tests: str, secret: int) -> None:
    """Run code that stands before a program, the program and its tests; then write the secret.

    A program may exit: its tests run all the same. `before` may be the beginning of a function,
    which compiles only together with its body; then it does not run by itself. What is used after
    the program is bound before it, and so is what the tests find in Python. The secret is read from
    a pipe, as a program could find it in memory.
    """
    read, write, execute, usual = os.read, os.write, exec, vars(builtins)
    trace, profile = sys.settrace, sys.setprofile
    leaves, fails, restore, python = SystemExit, Exception, usual.update, dict(usual)
    checks, first = compile(tests, "tests", "exec", dont_inherit=True), ast.Module([], [])
    with suppress(SyntaxError):
        first = parsed_program(before)
    begin = compile(first, "before", "exec", dont_inherit=True)
    flags, space = begin.co_flags & FUTURE, dict[str, Any]()  # as HumanEval: no __main__
    execute(begin, space)
    helpers, program = program_of(answer, before, cell_of(tests))
    trees = [cell.tree for cell in helpers + program]
    codes = [compile(tree, "program", "exec", flags, dont_inherit=True) for tree in trees]
    # a cell of the program (left <= 0) may not raise, one that helps may
    for left, code in zip(range(len(helpers), -len(program), -1), codes, strict=True):
        try:
            execute(code, space)
        except leaves:
            pass
        except fails:
            if left <= 0:
                raise
    trace(None)
    profile(None)
    restore(python)
    space["__builtins__"] = python
    execute(checks, space)
    write(1, read(secret, 99))
