"""The page docs/verification.md, from docs/verification.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

DATA = Path(__file__).with_suffix(".yaml").with_stem("verification")
HEAD = """# What is verified, and what is not

What was compared with what, by which command, and what that does not show. The tests named run the
comparison, or a small form of it."""


def read() -> dict[str, Any]:
    """Return the checks (`verified`) and what never ran (`never`)."""
    found: dict[str, Any] = yaml.safe_load(DATA.read_text())
    return found


def verification_page() -> str:
    """Return the page."""
    data = read()
    checks = []
    for row in data["verified"]:
        quoted = "; ".join(text.strip("| ").replace(" | ", ", ") for text in row.get("figures", []))
        figures = f"\n  Found: {quoted} ([more]({_link(row['source'])}))." if quoted else ""
        tests = ", ".join(f"[{Path(test).stem}](../{test})" for test in row["tests"])
        checks.append(
            f"* **{row['what'][0].upper()}{row['what'][1:]}**, against {row['against']}.\n"
            f"  `{row['command']}`, {row['when']}; tests: {tests}.{figures}\n"
            f"  Does not show: {row['not']}."
        )
    never = "\n".join(f"* {text}" for text in data["never"])
    return "\n".join([HEAD, "", *checks, "", "## What never ran", "", never, ""])


def _link(source: str) -> str:
    return source.removeprefix("docs/") if source.startswith("docs/") else f"../{source}"
