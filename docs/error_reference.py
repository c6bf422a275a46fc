"""The page docs/errors.md: every error code by group, then worked examples; `make reference`."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from settings_reference import table

from dopsd.cli.explain import code_groups, explanation
from dopsd.core.errors import Code

EXAMPLES = Path(__file__).with_name("error_examples.yaml")
SEEN = "<!-- see tests/unit/package/test_error_examples.py -->"
HEAD = """# Error codes

An error ends a command with one line: where, what is wrong, and what to do. The code at its end is
stable: it keeps its meaning in later releases, whatever the wording. Of several lines, the first
has the code. `dopsd explain D103` prints an entry of this page, and `dopsd explain` lists all.
The [exit code](pipeline.md) says whether the same command may work later. In Python, `error.code`
of a `DopsdError` is a member of `dopsd.core.errors.Code`.

A linked code has an [example](#examples)."""
EXAMPLES_HEAD = """## Examples

What leads to the error, the line, and the fix. A test runs each of them in a small project, so
numbers may differ from yours."""


@cache
def examples() -> dict[str, dict[str, Any]]:
    """Return the worked examples by code; error_examples.yaml explains their keys."""
    values: dict[str, dict[str, Any]] = yaml.safe_load(EXAMPLES.read_text())
    return values


def errors_page() -> str:
    """Return the page: a table for each group, then the examples."""
    parts = [HEAD]
    for title, codes in code_groups().items():
        rows = [
            [_anchored(code), texts["title"], texts["cause"], texts["fix"]]
            for code, texts in codes.items()
        ]
        parts += [f"## {title}", table(["code", "error", "cause", "what to do"], rows)]
    parts += [EXAMPLES_HEAD, *(_example(code, each) for code, each in examples().items())]
    return "\n\n".join(parts) + "\n"


def _anchored(code: str) -> str:
    name = f"[{code}](#{_heading_id(code)})" if code in examples() else code
    return f'<a id="{code.lower()}"></a>{name}'


def _heading_id(code: str) -> str:
    """Return the anchor that GitHub and mkdocs give to the heading of an example."""
    return re.sub(r"[^\w -]", "", _heading(code).lower()).strip().replace(" ", "-")


def _heading(code: str) -> str:
    return f"{code}: {explanation(Code(code))['title']}"


def _example(code: str, example: dict[str, Any]) -> str:
    commands = "\n".join([*example.get("before", []), example["run"]])
    fix = "\n".join(example["fix"])
    parts = [f"### {_heading(code)}", _bash(commands), _text(example["prints"])]
    parts += ["Fix:", _bash(fix)]
    return "\n\n".join(parts + ([_text(example["then"])] if "then" in example else []))


def _bash(text: str) -> str:
    return f"{SEEN}\n```bash\n{text}\n```"


def _text(text: str) -> str:
    return f"```text\n{text}\n```"
