"""The page docs/verification.md, from docs/verification.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from settings_reference import table

DATA = Path(__file__).with_suffix(".yaml").with_stem("verification")
HEAD = """# What is verified, and what is not

Each row says what was compared with what, by which command, and what that does **not** show. The
tests named run the comparison, or a small form of it."""


def read() -> dict[str, Any]:
    """Return the checks (`verified`) and what never ran (`never`)."""
    found: dict[str, Any] = yaml.safe_load(DATA.read_text())
    return found


def verification_page() -> str:
    """Return the page."""
    data = read()
    rows = [
        [
            row["what"],
            row["against"],
            f"`{row['command']}`",
            str(row["when"]) + (f" ([figures]({_link(row['source'])}))" if "source" in row else ""),
            row["not"],
            ", ".join(f"[{Path(test).stem}](../{test})" for test in row["tests"]),
        ]
        for row in data["verified"]
    ]
    head = ["what", "against", "command", "when, where", "does not show", "tests"]
    never = "\n".join(f"* {text}" for text in data["never"])
    return f"{HEAD}\n\n{table(head, rows)}\n\n## What never ran\n\n{never}\n"


def _link(source: str) -> str:
    return source.removeprefix("docs/") if source.startswith("docs/") else f"../{source}"
