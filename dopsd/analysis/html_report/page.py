"""Put a report's template, styles, scripts and charts into one HTML file."""

from __future__ import annotations

import hashlib
import json
import re
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dopsd.core.files import write_atomically

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

    from dopsd.analysis.html_report.run_charts import Chart

FOLDER = files("dopsd.analysis.html_report")
SHARED = ("palette.py", "statistics.py")  # of the core: colours and numbers of the pages
INPUTS = re.compile(r'<meta name="dopsd-inputs" content="(\w+)">')
HEAD = 4096  # bytes of a page that hold its digest


def digest_of(facts: object) -> str:
    """Return a digest of what a page is made from: its facts, and the code that writes it."""
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.sha256(f"{text}\n{_code_digest()}".encode()).hexdigest()[:16]


@cache
def _code_digest() -> str:
    code = sorted((part.name, part.read_bytes()) for part in code_files())
    return hashlib.sha256(b"\n".join(name.encode() + data for name, data in code)).hexdigest()


def code_files() -> list[Traversable]:
    """Return the files that decide how pages look: those of analysis, templates, and SHARED."""
    folders = (files("dopsd.analysis"), FOLDER, FOLDER.joinpath("templates"))
    parts = [part for folder in folders for part in folder.iterdir() if part.is_file()]
    return [*parts, *(files("dopsd.core").joinpath(name) for name in SHARED)]


def is_fresh(page: Path, digest: str) -> bool:
    """Return whether a page exists and was made from facts with this digest."""
    if not page.is_file():
        return False
    with page.open("rb") as stream:
        written = INPUTS.search(stream.read(HEAD).decode(errors="replace"))
    return written is not None and written[1] == digest


def write_page(path: Path, text: str) -> None:
    """Write a page, in which a question mark stands for each lone surrogate of a generation."""
    write_atomically(path, text.encode(errors="replace").decode())


def render_page(
    template: str, digest: str, charts: dict[str, list[Chart]], values: dict[str, Any]
) -> str:
    """Return a page."""
    from bokeh.embed import components
    from bokeh.resources import Resources

    flat = {f"{section}-{i}": c for section, group in charts.items() for i, c in enumerate(group)}
    script, divs = components({name: chart.figure for name, chart in flat.items()})
    resources = Resources(mode="inline", components=["bokeh"], minified=True)
    by_section = {
        section: [(f"{section}-{i}", chart) for i, chart in enumerate(group)]
        for section, group in charts.items()
    }
    context = values | {"digest": digest, "charts": by_section, "divs": divs}
    context |= {"chart_script": script, "chart_library": resources.render_js()}
    return _environment().get_template(template).render(context)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    templates = FOLDER.joinpath("templates")
    environment = Environment(
        loader=FunctionLoader(lambda name: templates.joinpath(name).read_text(encoding="utf-8")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Any] = {"code": code, "grouped": lambda number: f"{number:,.0f}"}
    environment.filters |= filters
    return environment


def code(text: str) -> Markup:
    """Return a text with what is between backticks as code; all else is escaped."""
    from markupsafe import Markup, escape

    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))
