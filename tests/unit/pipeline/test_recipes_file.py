"""recipes.yaml, on which DVC's stages depend: the numbers of this code and of plug-ins."""

import shutil
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import yaml
from conftest import ROOT

from dopsd.core import registry
from dopsd.core.errors import DopsdError
from dopsd.core.fingerprint import recipe
from dopsd.core.registry import Registry
from dopsd.pipeline.dvc.writer_lock import WriterLock
from dopsd.pipeline.recipes import FILE, recipes, write_recipes
from dopsd.tasks.registry import TASKS


@pytest.fixture(autouse=True)
def empty_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    shutil.copyfile(ROOT / "dvc.yaml", "dvc.yaml")


def test_the_file_of_this_checkout_is_true_and_has_each_number_that_dvc_asks_for():
    assert yaml.safe_load((ROOT / FILE).read_text()) == recipes(), "run `make reference`"
    for name, stage in yaml.safe_load(Path("dvc.yaml").read_text())["stages"].items():
        for keys in [p[str(FILE)] for p in stage["params"] if isinstance(p, dict)]:
            for key in keys:
                room, _, member = key.partition(".")
                number = recipes()[room]
                assert "$" in member or (number[member] if member else number) >= 1, (name, key)


@pytest.mark.parametrize(
    ("text", "number"),
    [('"""Said otherwise."""\n', 1), ("X = RECIPE = 2\n", 2), ("RECIPE: int = 3  # why\n", 3)],
)
def test_the_number_of_a_plugin_is_read_without_importing_it(text, number, tmp_path, monkeypatch):
    monkeypatch.setitem(TASKS.packages, "copying", "toys.copying")
    Path("toys/copying").mkdir(parents=True)
    Path("toys/copying/__init__.py").write_text(text)
    write_recipes()
    assert yaml.safe_load(FILE.read_text())["tasks"]["copying"] == number
    before = FILE.stat().st_mtime_ns
    write_recipes()
    assert FILE.stat().st_mtime_ns == before


def test_a_recipe_that_is_no_number_is_refused_with_its_file():
    Path("stage.py").write_text('RECIPE = "2"\n')
    with pytest.raises(DopsdError, match=r"stage.py: RECIPE = '2': expected a whole number") as e:
        recipe(Path("stage.py"))
    assert e.value.exit_code == 2


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
        write_recipes()
    with pytest.raises(DopsdError, match=r"task broken: .*cannot be imported \(SyntaxError"):
        TASKS.config_class("broken")


def test_the_file_is_written_by_the_one_writer_alone():
    """Another process holds the workspace: recipes.yaml stays as it is until its turn comes."""
    with WriterLock("other"):
        command = [sys.executable, "-m", "dopsd", "repro", "--dry"]
        waiting = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert waiting.stderr and "waiting" in waiting.stderr.readline()
        was_written = FILE.exists()
    waiting.terminate()
    waiting.communicate(timeout=120)
    assert not was_written
