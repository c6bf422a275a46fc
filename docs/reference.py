"""Pages and tables of the docs that come from the code: `make reference` writes the pages.

They are committed, so that GitHub shows them; tests/unit/package/test_reference.py makes them again
and compares.
"""

from __future__ import annotations

import os
import re
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from error_reference import errors_page
from metric_tables import TABLES, Table
from results_tables import RESULT_TABLES
from settings_reference import configuration_page, table
from verification_page import verification_page

from dopsd.algorithms.registry import ALGORITHMS
from dopsd.core.errors import Code, DopsdError
from dopsd.pipeline.bases.table import architectures_table, checkpoints_table
from dopsd.tasks.registry import TASKS, load_task

if TYPE_CHECKING:
    from dopsd.core.metrics import Metric
    from dopsd.core.registry import Registry

DOCS = Path(__file__).parent
NOTE = "<!-- Made by `make reference` from the code; change the code. -->\n\n"
METRICS_HEAD = """# Metrics

Every number that the project logs, by the files that hold it. A share is between 0 and 1, and
logarithms are natural. `{word}` in a name stands for any text. Metrics of an algorithm or a task
are in its folder, in `config.py`."""


def metrics_text(level: str, part: Table) -> str:
    """Return a table of the glossary with its heading."""
    rows = [
        [f"`{name}`", metric.unit, metric.meaning, f"`{metric.source.removeprefix('dopsd.')}`"]
        for name, metric in part.metrics.items()
    ]
    head = ["name", "unit", "meaning", "computed by `dopsd.`"]
    return "\n\n".join([f"{level} {part.title}", part.where, table(head, rows)])


def own_tables(registry: Registry, where: str) -> list[Table]:
    """Return what algorithms or tasks log of their own; those that log the same share a table."""
    tables: list[tuple[list[str], dict[str, Metric]]] = []
    for name in registry.names:
        metrics = registry.metrics(name)
        same = next((names for names, others in tables if others == metrics), None)
        if same:
            same.append(name)
        elif metrics:
            tables.append(([name], metrics))
    return [Table(", ".join(names), where, metrics) for names, metrics in tables]


def metrics_page() -> str:
    """Return the glossary as a page."""
    parts = [METRICS_HEAD, *(metrics_text("##", part) for part in TABLES)]
    rooms = (
        ("Algorithms", ALGORITHMS, "In the same files as table [Training](#training)."),
        ("Tasks", TASKS, "In the same files as table [Evaluation](#evaluation)."),
    )
    for title, registry, where in rooms:
        parts += [f"## {title}", *(metrics_text("###", t) for t in own_tables(registry, where))]
    return "\n\n".join(parts) + "\n"


def front_matter(page: Path, keys: tuple[str, ...]) -> dict[str, str]:
    """Return the YAML between the `---` lines that a page begins with; it must have these keys."""
    if not page.is_file():
        raise DopsdError(
            f"{page}: no such page; add it with a front matter of {', '.join(keys)}",
            code=Code.PLUGIN_PAGE,
        )
    text = page.read_text()
    head = text.split("---\n")[1] if text.startswith("---\n") else ""
    try:
        values = yaml.safe_load(head) or {}
    except yaml.YAMLError as error:
        raise DopsdError(
            f"{page}: the front matter is not valid YAML ({error}); fix it", code=Code.PLUGIN_PAGE
        ) from error
    if not isinstance(values, dict):
        raise DopsdError(
            f"{page}: the front matter is not a mapping of keys; write key: value",
            code=Code.PLUGIN_PAGE,
        )
    missing = [key for key in keys if not values.get(key)]
    if missing:
        raise DopsdError(
            f"{page}: the front matter has no {', '.join(missing)}; add it", code=Code.PLUGIN_PAGE
        )
    return values


def algorithms_table(pages: Path = DOCS / "algorithms", link: str = "algorithms/") -> str:
    """Return a table of the algorithms from the front matter of their pages.

    Args:
        pages: folder of the pages, NAME.md each, with `learns_from`, `loss` and `source`.
        link: that folder as seen from the page that shows the table, with a slash at its end.
    """
    keys = ("learns_from", "loss", "source")
    rows = []
    for name in ALGORITHMS.names:
        values = front_matter(pages / f"{name}.md", keys)
        rows.append([f"[`{name}`]({link}{name}.md)", *(str(values[key]) for key in keys)])
    return table(["algorithm", "learns from", "loss", "source"], rows)


def tasks_table() -> str:
    """Return a table of the tasks, from their settings and the first line of their packages."""
    rows = []
    for name in TASKS.names:
        config = TASKS.config_class(name)()
        rows.append(
            [
                f"`{name}`",
                (import_module(TASKS.packages[name]).__doc__ or "").splitlines()[0],
                "graded: the share that is right"
                if load_task(name, config).graded
                else "right or wrong",
                "of generated problems"
                if "generate" in type(config).model_fields
                else ("yes" if config.has_solutions else "no"),
            ]
        )
    return table(["task", "what it is", "score of an answer", "reference solutions"], rows)


PAGES = {
    "configuration.md": configuration_page,
    "errors.md": errors_page,
    "metrics.md": metrics_page,
    "verification.md": verification_page,
}
WITH_TABLES = {  # pages with tables between comments, and how they lead to docs/algorithms
    os.path.relpath(page, DOCS): os.path.relpath(DOCS / "algorithms", page.parent) + "/"
    for page in sorted([DOCS.parent / "README.md", *DOCS.rglob("*.md")])
    if "<!-- table: " in page.read_text()
}
TABLE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def page_text(name: str) -> str:
    """Return a page as it has to be committed."""
    if name in PAGES:
        return NOTE + PAGES[name]()
    tables = {
        "algorithms": lambda: algorithms_table(link=WITH_TABLES[name]),
        "tasks": tasks_table,
        "bases": lambda: "\n".join(checkpoints_table()),
        "architectures": lambda: "\n".join(architectures_table()),
        **RESULT_TABLES,
    }
    text = (DOCS / name).read_text()
    return TABLE.sub(lambda part: f"{part[1]}{tables[part[2]]()}\n{part[3]}", text)


def main() -> None:
    """Write all pages."""
    for name in (*PAGES, *WITH_TABLES):
        (DOCS / name).write_text(page_text(name))


if __name__ == "__main__":
    main()
