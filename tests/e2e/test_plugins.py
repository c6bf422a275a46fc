"""An algorithm and a task of another package, found by their entry points, through DVC and through the flow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from workspace import Workspace

FILES = {
    "toys-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: toys\nVersion: 1\n",
    "toys-1.dist-info/entry_points.txt": "[dopsd.algorithms]\necho = toys.echo\n[dopsd.tasks]\ncopying = toys.copying\n",
    "toys/__init__.py": "",
    "toys/echo/__init__.py": "",
    "toys/echo/config.py": """
from dopsd.algorithms.common.config import AlgorithmConfig

class EchoConfig(AlgorithmConfig):
    strength: float = 1.0
""",
    "toys/echo/algorithm.py": """
import torch
from dopsd.algorithms.common.base import LossOutput
from dopsd.algorithms.common.losses import masked_diffusion_loss
from dopsd.algorithms.common.masking import Text, masked
from dopsd.core.metrics import MetricSums
from dopsd.core.rng import key_from
from dopsd.rollout.groups import RolloutStats

def build(config, context):
    return Echo(config, context)

class Echo:
    normalize_by_all_prompts = False

    def __init__(self, config, context):
        self.config, self.context = config, context
        self.stats = RolloutStats({}, MetricSums())

    def collect(self, policy, problems, update):
        prompts = self.context.prompts(problems)
        length = self.context.sampling.gen_length
        texts = [torch.full((length,), policy.eos_id) for _ in prompts]
        keys = [key_from("echo", self.context.seed, update, problem.id) for problem in problems]
        rows = [Text(*row) for row in zip(prompts, texts, keys)]
        self.stats = RolloutStats({"trajectories": len(rows), "rollouts": 0, "sampled_tokens": 0}, MetricSums())
        return [[masked(policy, rows)]]

    def loss(self, policy, batch):
        each = masked_diffusion_loss(policy, batch) * self.config.strength
        metrics = MetricSums()
        metrics.add("cross_entropy", each.detach().sum().item(), len(batch))
        return LossOutput((each * batch.weight).sum(), metrics)
""",
    "toys/copying/__init__.py": "",
    "toys/copying/config.py": """
from dopsd.tasks.common.config import TaskConfig

class CopyingConfig(TaskConfig):
    problems: int = 8
""",
    "toys/copying/task.py": """
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

    def verify(self, problem, text):
        answer = text.strip() or None
        return score_by_rule(self.scoring, *[(answer, float(answer == problem.answer))] * 2)
""",
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


@pytest.mark.full
def test_a_toy_algorithm_and_a_toy_task_train_through_dvc(plugin: Path, tmp_path: Path):
    work = Workspace(tmp_path / "project")
    work.env["PYTHONPATH"] += f"{os.pathsep}{plugin}"
    changes = [
        "matrix.tasks=[sudoku, copying]",
        "matrix.methods=[echo]",
        "train.updates=2",
        "train.checkpoint_every=1",
    ]
    work.run(sys.executable, "-m", "dopsd", "params", *(f"--set={change}" for change in changes))
    settings = yaml.safe_load((work.folder / "params.yaml").read_text())
    assert (
        settings["method"]["echo"]["strength"] == 1.0
        and settings["data"]["copying"]["problems"] == 8
    )
    work.run(
        sys.executable, "-m", "dopsd", "repro", "evaluate_base@copying", "report@copying-echo-0"
    )
    costs = json.loads((work.folder / "runs/copying/echo/0/train.json").read_text())
    assert costs["updates"] == 2 and (work.folder / "reports/copying/echo/0/accuracy.png").is_file()
    link = work.folder / "code/algorithms/echo"
    assert link.is_symlink() and link.resolve() == plugin / "toys/echo"
    (plugin / "toys/echo/algorithm.py").write_text(FILES["toys/echo/algorithm.py"] + "\n")
    stale = json.loads(work.dvc("status", "--json"))
    assert "train@copying-echo-0" in stale and "evaluate_base@copying" not in stale


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


def test_the_command_line_says_in_one_line_what_a_plugin_lacks(plugin: Path):
    (plugin / "toys/copying/config.py").write_text("")
    ended = python(plugin, "from dopsd.__main__ import main; raise SystemExit(main())")
    assert ended.returncode == 2
    assert ended.stderr == (
        "dopsd: task copying: toys.copying.config must define one subclass of TaskConfig, it defines 0\n"
    )
