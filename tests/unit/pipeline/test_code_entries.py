"""The entries of code/, on which DVC depends: links to a checkout, numbers of a package."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from conftest import ROOT

from dopsd.core.errors import DopsdError
from dopsd.pipeline import code_entries
from dopsd.pipeline.code_entries import write_entries
from dopsd.tasks.registry import TASKS

RFT = "dopsd/algorithms/rft/__init__.py"


@pytest.fixture(autouse=True)
def empty_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    shutil.copyfile(ROOT / "dvc.yaml", "dvc.yaml")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where dopsd is installed: the code of this checkout, and nothing beside it."""
    ignored = shutil.ignore_patterns("template", "__pycache__")
    shutil.copytree(ROOT / "dopsd", tmp_path / "site/dopsd", ignore=ignored)

    def folder(package: str) -> Path:
        return (tmp_path / "site").joinpath(*package.split("."))

    monkeypatch.setattr(code_entries, "_folder", folder)
    return tmp_path / "site"


def entries() -> dict[str, str]:
    return {p.as_posix(): p.read_text() for p in Path("code").rglob("*") if p.is_file()}


def test_missing_links_are_made_wrong_ones_corrected_and_dead_ones_removed():
    Path("code/algorithms").mkdir(parents=True)
    Path("code/core").symlink_to("elsewhere")
    Path("code/algorithms/gone").symlink_to("nowhere")
    write_entries()
    assert Path("code/core/errors.py").is_file() and Path("code/algorithms/rft/config.py").is_file()
    assert not os.path.lexists("code/algorithms/gone")


@pytest.mark.parametrize("name", ["core/mine.py", "tasks/registry.py"])
def test_what_is_no_entry_is_named_and_left_alone(name: str, site: Path):
    Path("code", name).parent.mkdir(parents=True)
    Path("code", name).write_text("mine")
    with pytest.raises(DopsdError, match=r"code/(core|tasks/registry.py): .*remove it") as raised:
        write_entries()
    assert raised.value.exit_code == 2 and Path("code", name).read_text() == "mine"


def test_a_raised_recipe_changes_its_own_entry_and_a_docstring_none(site: Path):
    write_entries()
    before = entries()
    assert before["code/algorithms/rft/__init__.py"] == "RECIPE = 1\n"
    assert before["code/pipeline/stages/train.py"] == "RECIPE = 1\n"
    assert {p for p in Path("code").rglob("*") if p.is_symlink()} == set()
    (site / RFT).write_text('"""Said otherwise."""\n')
    write_entries()
    assert entries() == before
    (site / RFT).write_text('"""Other numbers."""\n\nRECIPE: int = 2\n')
    write_entries()
    changed = {path for path, text in entries().items() if before.get(path) != text}
    assert changed == {"code/algorithms/rft/__init__.py"}


def test_dvc_finds_an_entry_for_each_name_of_its_pipeline(site: Path):
    write_entries()
    names = {f"code/{name}" for name in code_entries._named()}
    assert {name for name in names if not Path(name).exists()} == set() and len(names) > 15


def test_links_become_numbers_and_numbers_links(site: Path, monkeypatch: pytest.MonkeyPatch):
    shutil.copyfile("dvc.yaml", site / "dvc.yaml")  # a checkout
    write_entries()
    linked = {path: path.readlink() for path in Path("code").rglob("*") if path.is_symlink()}
    assert Path("code/core") in linked
    (site / "dvc.yaml").unlink()
    write_entries()
    assert set(entries().values()) == {"RECIPE = 1\n"} and not Path("code/core").is_symlink()
    shutil.copyfile("dvc.yaml", site / "dvc.yaml")
    write_entries()
    assert {p: p.readlink() for p in Path("code").rglob("*") if p.is_symlink()} == linked


@pytest.mark.parametrize("text", ["", "RECIPE = 3\n"])
def test_a_plugin_is_a_link_until_it_declares_a_recipe(text, site, monkeypatch):
    monkeypatch.setitem(TASKS.packages, "copying", "toys.copying")
    (site / "toys/copying").mkdir(parents=True)
    (site / "toys/copying/__init__.py").write_text(text)
    write_entries()
    assert Path("code/tasks/copying").is_symlink() == (not text)
    assert entries().get("code/tasks/copying/__init__.py", "") == text
    monkeypatch.delitem(TASKS.packages, "copying")
    shutil.rmtree(site / "toys")
    write_entries()
    assert not os.path.lexists("code/tasks/copying")


def test_a_recipe_that_is_no_number_is_refused_with_its_file(site: Path):
    (site / RFT).write_text('RECIPE = "2"\n')
    with pytest.raises(DopsdError, match=r"rft/__init__.py: RECIPE = '2': expected a whole number"):
        write_entries()
