"""`dopsd explain D103`: title, cause and fix of an error code, from explanations.yaml."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from ruamel.yaml import YAML

from dopsd.core.errors import Code

if TYPE_CHECKING:
    from dopsd.cli.arguments import Commands

PAGE = "docs/errors.md"
LINK = re.compile(r"\[([^]]*)\]\(([^)]*)\)")


def add_explain(commands: Commands) -> None:
    """Add explain."""
    description = "Explain an error code: its cause, and what to do. Without a code, list all."
    parser = commands.add_parser("explain", description=description, help=description)
    parser.add_argument("code", nargs="?", help="the code at the end of a message, such as D103")


@cache
def code_groups() -> dict[str, dict[str, dict[str, str]]]:
    """Return title, cause and fix by group and code."""
    text = files("dopsd.cli").joinpath("explanations.yaml").read_text(encoding="utf-8")
    explanations: dict[str, dict[str, dict[str, str]]] = YAML(typ="safe", pure=True).load(text)
    return explanations


def explanation(code: Code) -> dict[str, str]:
    """Return title, cause and fix of a code."""
    return next(codes[code.value] for codes in code_groups().values() if code.value in codes)


def _code_of(text: str) -> Code:
    """Return the code that a person typed, in capitals or not, with brackets or not."""
    try:
        return Code(text.strip("() ").upper())
    except ValueError:
        raise Code.UNKNOWN_NAME.error(
            f"explain {text}: no such code; `dopsd explain` lists all"
        ) from None


def _explain(a: argparse.Namespace) -> None:
    if a.code is None:
        print("\n".join(f"{code.value}  {explanation(code)['title']}" for code in Code))
        return
    code = _code_of(a.code)
    parts = {name: LINK.sub(r"\1 (docs/\2)", text) for name, text in explanation(code).items()}
    print(f"{code.value}: {parts['title']}\n\nCause: {parts['cause']}\nFix: {parts['fix']}\n")
    print(f"All codes, with examples: {PAGE}#{code.value.lower()}")


FREE: dict[str, Callable[[argparse.Namespace], None]] = {"explain": _explain}
