"""The algorithms of examples/plugin and a toy task, found by entry points, in flow and DVC."""

import json
import os
import shlex
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from conftest import ROOT
from example_plugin import FOLDER, PACKAGES
from forks import output, script, start, statuses
from safetensors.numpy import load_file
from test_docs import blocks
from workspace import Workspace, ran

from dopsd.algorithms.d_opsd.config import DOpsdConfig
from dopsd.algorithms.registry import ALGORITHMS
from dopsd.config.profiles import embedded

pytestmark = pytest.mark.full

METHODS = ", ".join(sorted({*ALGORITHMS.names, "routed"})[:3])

ALGORITHM_LINES = "".join(f"{name} = {package}\n" for name, package in PACKAGES.items())
FILES = {
    "toys-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: toys\nVersion: 1\n",
    "toys-1.dist-info/entry_points.txt": (
        f"[dopsd.algorithms]\n{ALGORITHM_LINES}[dopsd.tasks]\ncopying = toys.copying\n"
    ),
    "toys/__init__.py": "",
    "toys/copying/__init__.py": "",
    "toys/copying/config.py": (
        """
from dopsd.tasks.common.config import TaskConfig

class CopyingConfig(TaskConfig):
    problems: int = 8
"""
    ),
    "toys/copying/task.py": (
        """
from dopsd.core.types import Problem
from dopsd.tasks.common.answers import score_by_rule
from dopsd.tasks.common.asking import AskingTask

def make(config):
    return Copying(config)

class Copying(AskingTask):
    name, instructions = "copying", "Copy the digits."

    def build(self):
        return {s: [Problem(f"{s}-{i}", str(1234 + i), str(1234 + i)) for i in range(self.config.problems)]
                for s in ("train", "validation", "test")}

    def fault(self, problem):
        return None

    def ask(self, text):
        return Problem("asked", text, text)

    def of_generation(self, question, ground_truth):
        return Problem("generated", question, ground_truth)

    def verify(self, problem, text):
        answer = text.strip() or None  # a base that knows nothing of the task gets some right
        return score_by_rule(self.scoring, *[(answer, float(len(text) % 2))] * 2)
"""  # noqa: E501
    ),
}


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / "site" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "site" / name).write_text(text)
    package = "verified_future"
    shutil.copytree(FOLDER / package, tmp_path / "site" / package)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "site"


def python(plugin: Path, code: str, status: int) -> str:
    """What a Python that finds the plug-in prints before it ends with this status."""
    assert statuses([start(script, code, str(ROOT), str(plugin))]) == [status], output()
    return output()


def begin(plugin: Path, folder: Path, *changes: str) -> Workspace:
    """A workspace that finds the plug-in, whose task has a base of its own, wider than others."""
    work = Workspace(folder, is_warm=True)
    work.env["PYTHONPATH"] += f"{os.pathsep}{plugin}"
    shutil.copytree(ROOT / "base/sudoku", folder / "base/copying")
    changes += ("matrix.methods=[routed]", "train.updates=2", "train.checkpoint_every=1")
    changes += ("data.copying={recipe: 1, problems: 8, model: {path: base/copying}}",)
    changes += ("train.prompts_per_collect=4",)
    work.run(sys.executable, "-m", "dopsd", "params", *(f"--set={change}" for change in changes))
    return work


def width(work: Workspace) -> int:
    """Of the model that the adapter is for."""
    adapter = work.folder / "runs/copying/routed/0/best/adapter_model.safetensors"
    return max(size for tensor in load_file(adapter).values() for size in tensor.shape[1:])


FLOW = """
from flows.train import train
print(train("params.yaml as it stands", task="copying", methods=["routed"], max_updates=2))
"""


def test_the_example_and_a_toy_task_with_its_own_base_train_through_the_flow_and_dvc(
    plugin: Path, prefect_database: Path, tmp_path: Path
):
    work = begin(plugin, tmp_path / "project", "matrix.tasks=[copying]")
    settings = yaml.safe_load((work.folder / "params.yaml").read_text())
    assert settings["method"]["routed"]["teach"] == "better"
    home = shutil.copytree(prefect_database.parent, tmp_path / "prefect")
    work.env |= {"PREFECT_API_URL": "", "PREFECT_HOME": str(home)}
    work.env |= {"PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "300"}
    assert "['copying/routed/0']" in work.run(sys.executable, "-c", FLOW)
    folder = work.folder / "runs/copying/routed/0"
    costs = json.loads((folder / "train.json").read_text())
    assert costs["updates"] == 2 and width(work) == 128
    assert len(list((folder / "train").glob("step-*"))) == 2
    assert (work.folder / "reports/copying/routed/0/accuracy.png").is_file()
    assert "Running stage" not in work.run(sys.executable, "-m", "dopsd", "repro")

    work.run(sys.executable, "-m", "dopsd", "params", "--set=train.learning_rate=0.002")
    said = work.run(sys.executable, "-m", "dopsd", "repro", "train@copying-routed-0")
    assert ran(said) == {"train"}
    (plugin / "verified_future/routed/__init__.py").write_text("RECIPE = 3\n")
    work.run(sys.executable, "-m", "dopsd", "repro", "--dry", "prepare@copying")
    stale = json.loads(work.dvc("status", "--json"))
    assert "train@copying-routed-0" in stale and "evaluate_base@copying" not in stale
    (work.folder / "base/copying/chat_template.jinja").write_text("another base")
    stale = json.loads(work.dvc("status", "--json"))
    found = [each.get("changed deps") for each in stale["evaluate_base@copying"]]
    assert {"base": "modified"} in found


@pytest.mark.nightly
def test_a_divergence_of_ones_own_trains_by_the_page_and_reports_name_it(plugin: Path):
    page = [b.text for b in blocks() if b.page.name == "extending.md" and "hellinger" in b.text]
    made = {text.partition("\n")[0][2:]: text for text in page[:-1]} | {"hellinger/__init__.py": ""}
    points = "[" + made["pyproject.toml"].partition('points."')[2].replace('"', "")
    (plugin / "hellinger").mkdir()
    for name, text in (made | {"toys-1.dist-info/entry_points.txt": points}).items():
        (plugin / name).write_text(text)
    work = Workspace(plugin.parent / "project", is_warm=True)
    work.env["PYTHONPATH"] += f"{os.pathsep}{plugin}"
    _pip, *words = map(shlex.split, page[-1].replace("\\\n", " ").splitlines())
    *_, said = (work.run(sys.executable, "-m", *line) for line in words)
    assert "| sudoku | d_opsd | hellinger | 1 |" in said
    report = (work.folder / "reports/sudoku-hellinger-0.html").read_text()
    assert "lowers the divergence <code>squared_hellinger</code>" in report
    like = DOpsdConfig(**yaml.safe_load(words[0][-1].partition("=")[2]), divergence="forward_kl")
    assert like == DOpsdConfig(**embedded()["method"]["d_opsd"])  # all but the divergence


def test_the_flows_offer_what_entry_points_bring(plugin: Path):
    found = python(plugin, "from flows.settings import Method, Task; print(Method, Task)", 0)
    assert "'routed'" in found and "'copying'" in found


LOADS = """
import sys
from types import SimpleNamespace
from dopsd.algorithms.registry import *
from dopsd.core.errors import DopsdError
from dopsd.tasks.registry import *
try:
    load_task("copying", TASKS.config_class("copying")())
    load_algorithm("routed", ALGORITHMS.config_class("routed")(), SimpleNamespace())
except DopsdError as error:
    sys.exit(str(error))
"""


ROUTED, TASK = "verified_future/routed/algorithm.py", "toys/copying/task.py"


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        (ROUTED, None, "", "algorithm routed: verified_future.routed.algorithm has no build"),
        (
            "verified_future/routed/config.py",
            None,
            "",
            "algorithm routed: verified_future.routed.config must define one subclass of",
        ),
        (
            ROUTED,
            'return Routed("routed", config, context)',
            "return context",
            "algorithm routed: verified_future.routed.algorithm.build(config, context):"
            " SimpleNamespace has no collect, loss, normalize_by_all_prompts; add the members"
            " of dopsd.algorithms.common.base.Algorithm",
        ),
        (
            ROUTED,
            "def build(config: RoutedConfig, context",
            "def build(config: RoutedConfig, *, context",
            "algorithm routed: verified_future.routed.algorithm.build(config, context): wrong"
            " arguments (too many positional arguments)",
        ),
        (
            TASK,
            "def verify",
            "def verifies",
            "task copying: toys.copying.task.make(config): Copying has no verify; add the members",
        ),
        (
            TASK,
            "return Copying(config)",
            "return 3",
            "task copying: toys.copying.task.make(config): int has no ask, build, graded,"
            " ground_truth, instructions, load,",
        ),
    ],
)
def test_a_plugin_that_does_not_fit_its_protocol_is_refused_by_name(
    plugin: Path, file, old, new, message
):
    text = (plugin / file).read_text()
    assert old is None or old in text
    (plugin / file).write_text(text.replace(old, new) if old else new)
    said = python(plugin, LOADS, 1)
    assert said.startswith(message) and said.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "listed"),
    [
        (["train", "--task", "nope"], "--task nope: unknown; there is chains, copying, "),
        (["train", "--method", "nope"], METHODS),
        (["params", "--set=matrix.tasks=[nope]"], "unknown; there is chains, copying"),
        (["params", "--set=method.nope.x=1"], f"unknown key; there is {METHODS}"),
    ],
)
def test_an_unknown_name_lists_those_that_exist_with_those_of_entry_points(
    plugin: Path, words, listed
):
    shutil.copyfile(ROOT / "params.yaml", "params.yaml")
    code = f"from dopsd.cli.main import main; raise SystemExit(main({words}))"
    said = python(plugin, code, 2)
    assert listed in said and said.count("\n") == 1


def test_the_command_line_says_in_one_line_what_a_plugin_lacks(plugin: Path):
    (plugin / "toys/copying/config.py").write_text("")
    said = python(plugin, "from dopsd.__main__ import main; raise SystemExit(main())", 2)
    assert "task copying: toys.copying.config must define one subclass of TaskConfig" in said
    assert said.endswith(" 0 (D803)\n") and said.count("\n") == 1
