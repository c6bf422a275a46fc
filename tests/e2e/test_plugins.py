"""An algorithm and a task of another package, found by their entry points, through DVC and through
the flow.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import ROOT
from safetensors.numpy import load_file
from workspace import Workspace

FILES = {
    "toys-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: toys\nVersion: 1\n",
    "toys-1.dist-info/entry_points.txt": (
        "[dopsd.algorithms]\necho = toys.echo\n[dopsd.tasks]\ncopying = toys.copying\n"
    ),
    "toys/__init__.py": "",
    "toys/echo/__init__.py": "",
    "toys/echo/config.py": (
        """
from dopsd.algorithms.common.config import AlgorithmConfig

class EchoConfig(AlgorithmConfig):
    strength: float = 1.0
"""
    ),
    "toys/echo/algorithm.py": (
        """
import torch
from dopsd.algorithms.common.base import Collected, LossOutput
from dopsd.algorithms.common.losses import masked_diffusion_loss
from dopsd.algorithms.common.masking import Text, masked
from dopsd.core.metrics import MetricSums
from dopsd.core.rng import key_from
from dopsd.rollout.collector import RolloutStats

def build(config, context):
    return Echo(config, context)

class Echo:
    normalize_by_all_prompts = False

    def __init__(self, config, context):
        self.config, self.context = config, context

    def collect(self, policy, problems, update):
        prompts = self.context.prompts(problems)
        length = self.context.sampling.gen_length
        texts = [torch.full((length,), policy.eos_id) for _ in prompts]
        keys = [key_from("echo", self.context.seed, update, problem.id) for problem in problems]
        rows = [Text(*row) for row in zip(prompts, texts, keys)]
        counters = {"trajectories": len(rows), "rollouts": 0, "sampled_tokens": 0}
        return Collected([[masked(policy, rows)]], RolloutStats(counters, MetricSums()))

    def loss(self, policy, batch):
        each = masked_diffusion_loss(policy, batch) * self.config.strength
        metrics = MetricSums()
        metrics.add("cross_entropy", each.detach().sum().item(), len(batch))
        return LossOutput((each * batch.weight).sum(), metrics)
"""
    ),
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
        answer = text.strip() or None
        return score_by_rule(self.scoring, *[(answer, float(answer == problem.answer))] * 2)
"""  # noqa: E501
    ),
}


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / "site" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "site" / name).write_text(text)
    return tmp_path / "site"


def python(plugin: Path, code: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}{os.pathsep}{plugin}"}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)


def begin(plugin: Path, folder: Path, *changes: str) -> Workspace:
    """A workspace that finds the plug-in, whose task has a base of its own: wider than the one that
    the tests pretrain.
    """
    work = Workspace(folder)
    work.env["PYTHONPATH"] += f"{os.pathsep}{plugin}"
    shutil.copytree(ROOT / "base/sudoku", folder / "base/copying")
    changes += ("matrix.methods=[echo]", "train.updates=2", "train.checkpoint_every=1")
    changes += ("data.copying={recipe: 1, problems: 8, model: {path: base/copying}}",)
    work.run(sys.executable, "-m", "dopsd", "params", *(f"--set={change}" for change in changes))
    return work


def width(work: Workspace) -> int:
    """Of the model that the adapter is for."""
    adapter = work.folder / "runs/copying/echo/0/best/adapter_model.safetensors"
    return max(size for tensor in load_file(adapter).values() for size in tensor.shape[1:])


@pytest.mark.full
def test_a_toy_algorithm_and_a_toy_task_with_its_own_base_train_through_dvc(
    plugin: Path, tmp_path: Path
):
    work = begin(plugin, tmp_path / "project", "matrix.tasks=[sudoku, copying]")
    settings = yaml.safe_load((work.folder / "params.yaml").read_text())
    assert (
        settings["method"]["echo"]["strength"] == 1.0
        and settings["data"]["copying"]["problems"] == 8
    )
    work.run(
        sys.executable, "-m", "dopsd", "repro", "evaluate_base@copying", "report@copying-echo-0"
    )
    costs = json.loads((work.folder / "runs/copying/echo/0/train.json").read_text())
    assert costs["updates"] == 2 and width(work) == 128
    assert (work.folder / "reports/copying/echo/0/accuracy.png").is_file()
    (plugin / "toys/echo/__init__.py").write_text("RECIPE = 2\n")
    work.run(sys.executable, "-m", "dopsd", "repro", "--dry")
    stale = json.loads(work.dvc("status", "--json"))
    assert "train@copying-echo-0" in stale and "evaluate_base@copying" not in stale
    (work.folder / "base/copying/chat_template.jinja").write_text("another base")
    stale = json.loads(work.dvc("status", "--json"))
    assert {"base": "modified"} in [
        found.get("changed deps") for found in stale["evaluate_base@copying"]
    ]


FLOW = """
from prefect.testing.utilities import prefect_test_harness
with prefect_test_harness(120):
    from flows.train import train
    print(train("params.yaml as it stands", task="copying", methods=["echo"], max_updates=2))
"""


@pytest.mark.full
def test_a_toy_algorithm_and_a_toy_task_train_through_the_flow(plugin: Path, tmp_path: Path):
    work = begin(plugin, tmp_path / "project", "matrix.tasks=[copying]")
    shutil.copytree(ROOT / "base/sudoku", work.folder / "base/sudoku")
    work.env["PREFECT_API_URL"] = ""
    assert "['copying/echo/0']" in work.run(sys.executable, "-c", FLOW)
    folder = work.folder / "runs/copying/echo/0"
    costs = json.loads((folder / "train.json").read_text())
    assert costs["updates"] == 2 and width(work) == 128
    assert len(list((folder / "train").glob("step-*"))) == 2
    assert (work.folder / "reports/copying/echo/0/accuracy.png").is_file()


def test_the_flows_offer_what_entry_points_bring(plugin: Path):
    found = python(plugin, "from flows.settings import Method, Task; print(Method, Task)").stdout
    assert "'echo'" in found and "'copying'" in found


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("toys/echo/algorithm.py", "", "algorithm echo: toys.echo.algorithm has no build; add it"),
        (
            "toys/echo/config.py",
            "",
            "algorithm echo: toys.echo.config must define one subclass of AlgorithmConfig",
        ),
    ],
)
def test_a_plugin_that_lacks_a_member_is_refused_by_name(plugin: Path, file, text, message):
    (plugin / file).write_text(text)
    code = "from dopsd.algorithms.registry import *\n"
    code += "load_algorithm('echo', ALGORITHMS.config_class('echo')(), None)"
    assert message in python(plugin, code).stderr


LOADS = """
import sys
from types import SimpleNamespace
from dopsd.algorithms.registry import *
from dopsd.core.errors import DopsdError
from dopsd.tasks.registry import *
try:
    load_task("copying", TASKS.config_class("copying")())
    load_algorithm("echo", ALGORITHMS.config_class("echo")(), SimpleNamespace())
except DopsdError as error:
    sys.exit(str(error))
"""


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("echo/algorithm.py", "def build", "def build", ""),
        (
            "echo/algorithm.py",
            "def loss",
            "def lose",
            (
                "algorithm echo: toys.echo.algorithm.build(config, context): Echo has no loss; add"
                " the members of dopsd.algorithms.common.base.Algorithm"
            ),
        ),
        (
            "echo/algorithm.py",
            "def build(config, context)",
            "def build(config, *, context)",
            (
                "algorithm echo: toys.echo.algorithm.build(config, context): wrong arguments"
                " (too many positional arguments)"
            ),
        ),
        (
            "copying/task.py",
            "def verify",
            "def verifies",
            "task copying: toys.copying.task.make(config): Copying has no verify; add the members"
            " of ",
        ),
        (
            "copying/task.py",
            "return Copying(config)",
            "return 3",
            (
                "task copying: toys.copying.task.make(config): int has no ask, build, graded,"
                " ground_truth, instructions, load,"
            ),
        ),
    ],
)
def test_a_plugin_that_does_not_fit_its_protocol_is_refused_by_name(
    plugin: Path, file, old, new, message
):
    (plugin / "toys" / file).write_text(FILES[f"toys/{file}"].replace(old, new))
    ended = python(plugin, LOADS)
    assert ended.returncode == bool(message), ended.stderr
    assert ended.stderr.startswith(message) and ended.stderr.count("\n") == bool(message)


@pytest.mark.parametrize(
    ("words", "listed"),
    [
        (["train", "--task", "nope"], "--task nope: unknown; there is chains, copying, "),
        (["train", "--method", "nope"], "d_opsd, diffu_grpo, echo, "),
        (["params", "--set=matrix.tasks=[nope]"], "unknown; there is chains, copying"),
        (["params", "--set=matrix.methods=[nope]"], "d_opsd, diffu_grpo, echo, "),
        (["params", "--set=verify_teacher.tasks=[nope]"], "there is chains, copying"),
        (["params", "--set=method.nope.x=1"], "unknown key; there is ar_opsd, d3llm, d_opsd,"),
        (["score", "--task", "nope", "x"], "unknown; there is chains, copying"),
    ],
)
def test_an_unknown_name_lists_those_that_exist_with_those_of_entry_points(
    plugin: Path, tmp_path: Path, words, listed
):
    shutil.copyfile(ROOT / "params.yaml", tmp_path / "params.yaml")
    code = f"import os; os.chdir({str(tmp_path)!r})\nfrom dopsd.cli.main import main\n"
    ended = python(plugin, f"{code}raise SystemExit(main({words}))")
    assert ended.returncode == 2 and listed in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_the_command_line_says_in_one_line_what_a_plugin_lacks(plugin: Path):
    (plugin / "toys/copying/config.py").write_text("")
    ended = python(plugin, "from dopsd.__main__ import main; raise SystemExit(main())")
    assert ended.returncode == 2
    assert (
        ended.stderr
        == "dopsd: task copying: toys.copying.config must define one subclass of TaskConfig, but"
        " defines 0 (D803)\n"
    )
