"""The entries of code/, on which DVC depends: links to a checkout, numbers of a package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from conftest import ROOT

from dopsd.core import registry
from dopsd.core.errors import DopsdError
from dopsd.core.registry import Registry
from dopsd.pipeline import code_entries
from dopsd.pipeline.code_entries import write_entries
from dopsd.pipeline.writer_lock import WriterLock
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
    assert all(code_entries.NUMBER.fullmatch(text) for text in entries().values())
    assert not Path("code/core").is_symlink()
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


@pytest.mark.parametrize(
    ("name", "module"), [("../x", "odd"), ("common", "odd"), ("a b", "odd"), ("fine", "")]
)
def test_the_name_of_a_plugin_is_no_path(name: str, module: str, monkeypatch):
    point = EntryPoint(name, module, "dopsd.tasks")
    monkeypatch.setattr(registry, "entry_points", lambda group: [point])
    with pytest.raises(
        DopsdError, match=r"entry point dopsd.tasks: .*expected a name of lowercase"
    ):
        _ = Registry("dopsd.tasks", "task").packages


def test_a_plugin_that_cannot_be_imported_is_named(tmp_path: Path, monkeypatch):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/__init__.py").write_text("def")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(TASKS.packages, "broken", "broken.task")
    with pytest.raises(DopsdError, match=r"plug-in broken.task: cannot be imported \(SyntaxError"):
        write_entries()
    with pytest.raises(DopsdError, match=r"task broken: .*cannot be imported \(SyntaxError"):
        TASKS.config_class("broken")


def test_entries_are_written_by_the_one_writer_alone(tmp_path: Path):
    """Another process holds the workspace: code/ stays as it is until its turn comes."""
    with WriterLock("other"):
        command = [sys.executable, "-m", "dopsd", "repro", "--dry"]
        env = os.environ | {"PYTHONPATH": str(ROOT)}
        waiting = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)
        assert waiting.stderr and "waiting" in waiting.stderr.readline()
        entries_before = [*Path().glob("code/*")]
    waiting.terminate()
    waiting.communicate(timeout=120)
    assert entries_before == []
