"""Pages of the docs that come from the code, and what docs/verification.yaml names."""

import re
import shutil
from pathlib import Path
from typing import Annotated

import pytest
from conftest import ROOT
from field_meanings import meaning
from pydantic import Field
from reference import DOCS, PAGES, WITH_TABLES, algorithms_table, page_text
from settings_reference import sections, settings_rows, shared_parts
from verification_page import read

from dopsd.algorithms.registry import ALGORITHMS
from dopsd.cli.main import build_parser
from dopsd.core.errors import DopsdError
from dopsd.core.settings import Count, Section, Share


@pytest.mark.parametrize("name", [*PAGES, *WITH_TABLES])
def test_a_page_is_what_the_code_makes(name: str):
    assert (DOCS / name).read_text() == page_text(name), "run `make reference` and commit the pages"


class Example(Section):
    """An example."""

    beside: Count = 1  # on its line
    # above it,
    # on two lines
    above: Share | None = 0.5
    wrapped: bool = False  # on one of its lines
    described: list[str] = Field(["a"], min_length=1, description="in the field")
    nothing: Annotated[float, Field(gt=0, lt=1)]  # noqa: RUF100


class Derived(Example):
    above: Share | None = None


def test_a_row_gives_type_bounds_default_and_the_meaning_wherever_it_is_written():
    kind = "number >= 0 and <= 1 or null"
    assert settings_rows(Example) == [
        ["`beside`", "whole number >= 1", "`1`", "on its line"],
        ["`above`", kind, "`0.5`", "above it, on two lines"],
        ["`wrapped`", "true or false", "`false`", "on one of its lines"],
        ["`described`", "list of text (length at least 1)", "`[a]`", "in the field"],
        ["`nothing`", "number > 0 and < 1", "required", ""],
    ]
    assert settings_rows(Derived)[1] == ["`above`", kind, "`null`", "above it, on two lines"]


def test_every_setting_has_a_meaning():
    kinds = [*(kind for _, kind in sections()), *shared_parts()]
    fields = [(kind, name) for kind in kinds for name in kind.model_fields]
    missing = [f"{kind.__name__}.{name}" for kind, name in fields if not meaning(kind, name)]
    assert missing == [], "add a comment to the line of the setting in its config.py"


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    """A page for each algorithm; that of rft is the real one."""
    for name in ALGORITHMS.names:
        text = f"---\nlearns_from: rollouts\nloss: a | b\nsource: paper\n---\n# {name}\n"
        (tmp_path / f"{name}.md").write_text(text)
    shutil.copyfile(DOCS / "algorithms/rft.md", tmp_path / "rft.md")
    return tmp_path


def test_the_table_of_algorithms_has_a_row_a_page(pages):
    head, _, *rows = algorithms_table(pages, "docs/algorithms/").splitlines()
    assert head == "| algorithm | learns from | loss | source |"
    assert "| [`ar_opsd`](docs/algorithms/ar_opsd.md) | rollouts | a \\| b | paper |" in rows
    assert len(rows) == len(ALGORITHMS.names)
    assert any(row.startswith("| [`rft`](docs/algorithms/rft.md) | its best") for row in rows)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (None, "no such page; add it with a front matter of learns_from, loss, source"),
        ("# sft\n", "the front matter has no learns_from, loss, source; add it"),
        ("---\nloss: x\nsource: y\n---\n", "the front matter has no learns_from; add it"),
        ("---\nonly text\n---\n", "the front matter is not a mapping of keys; write key: value"),
        ("---\na: [\n---\n", "the front matter is not valid YAML"),
    ],
)
def test_a_page_without_its_front_matter_is_named(pages, text: str | None, fault: str):
    page = pages / "sft.md"
    page.unlink() if text is None else page.write_text(text)
    with pytest.raises(DopsdError, match=f"{re.escape(f'{page}: {fault}')}"):
        algorithms_table(pages)


CHECKS = read()["verified"]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("check", CHECKS, ids=[check["what"][:40] for check in CHECKS])
def test_a_check_names_what_is_there(check):
    assert check.keys() >= {"what", "against", "command", "when", "not", "tests"}
    assert check["tests"] and all((ROOT / test).is_file() for test in check["tests"])
    tool, name, *rest = check["command"].split()
    if tool == "make":
        assert name in TARGETS
    elif tool == "dopsd":
        assert name in build_parser().format_help().split()
    else:
        paths = [word for word in (name, *rest) if "/" in word]
        assert tool == "python" and paths and all((ROOT / path).exists() for path in paths)
    text = (ROOT / check["source"]).read_text() if "source" in check else ""
    assert [figure for figure in check.get("figures", []) if figure not in text] == []
