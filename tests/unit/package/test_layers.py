"""The house's plan: which package may import which, where each library comes in, and what dvc.yaml
names.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import ROOT

from dopsd.algorithms.registry import ALGORITHMS
from dopsd.core.fingerprint import imported, sources
from dopsd.tasks.registry import TASKS

# Lowest first. A module imports from its own package and from packages below it.
LAYERS = [
    {"core"},
    {"distributed"},
    {"models"},
    {"tasks"},
    {"rollout"},
    {"algorithms"},
    {"training"},
    {"evaluation"},
    {"tracking", "analysis"},
    {"config"},
    {"pipeline"},
    {"api"},
    {"serving"},
    {"cli"},
    {"__main__"},
]
DOORS = {
    "huggingface_hub": {"models", "tracking"},
    "mlflow": {"tracking"},
    "prefect": set(),
    "peft": {"models"},
    "transformers": {"models"},
    "datasets": {"tasks"},
    "accelerate": {"distributed", "training"},
    "dvc": {"pipeline"},
}
FILES = sorted((ROOT / "dopsd").rglob("*.py"))
HEIGHT = {name: i for i, layer in enumerate(LAYERS) for name in layer}
SIBLINGS = ("algorithms", "tasks")  # packages whose folders share only common/ and the registry


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.mark.parametrize("path", [p for p in FILES if p.parent.name != "dopsd"], ids=name_of)
def test_imports_run_downward_and_never_to_a_sibling(path: Path):
    own = name_of(path).split(".")
    for module in imported(path, with_types=True):
        other = module.split(".")
        if other[1] == own[1]:
            folders = {parts[2] for parts in (own, other) if len(parts) > 2}
            is_shared = folders <= {own[2], "common", "registry"} if len(own) > 2 else True
            assert own[1] not in SIBLINGS or is_shared, f"{'.'.join(own)} imports {module}"
        else:
            assert HEIGHT[other[1]] < HEIGHT[own[1]], f"{'.'.join(own)} imports {module}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_libraries_come_in_only_where_they_are_allowed(path: Path):
    for node in ast.walk(ast.parse(path.read_text())):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        for top in {name.split(".")[0] for name in names} & DOORS.keys():
            assert name_of(path).split(".")[1] in DOORS[top], f"{name_of(path)} imports {top}"


def stages() -> dict:
    return yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]


def modules_of(stage: dict) -> list[str]:
    """The stages that the commands run, `python -m dopsd <stage> ...`."""
    commands = stage["cmd"] if isinstance(stage["cmd"], list) else [stage["cmd"]]
    return [f"dopsd.pipeline.stages.{command.split()[3]}" for command in commands]


RECIPES = {"prepare", "pretrain"}  # a number in params.yaml stands for their code: test_recipes.py


def test_stages_with_a_recipe_depend_on_no_code():
    assert [
        dep for stage in RECIPES for dep in stages()[stage]["deps"] if dep.startswith("code/")
    ] == []


def filled(name: str, task: str, algorithm: str) -> str:
    return re.sub(r"\$\{\w+\.task\}", task, re.sub(r"\$\{\w+\.method\}", algorithm, name))


@pytest.mark.parametrize("stage", sorted(stages().keys() - RECIPES))
@pytest.mark.parametrize("algorithm", ALGORITHMS.names)
def test_a_stage_depends_on_the_folders_of_the_code_that_it_imports(stage: str, algorithm: str):
    """All but config/, which only reads params.yaml: its values are dependencies of their own."""
    names = [
        dep.removeprefix("code/") for dep in stages()[stage]["deps"] if dep.startswith("code/")
    ]
    for task in TASKS.names:
        links = [filled(name, task, algorithm) for name in names]
        modules = modules_of(stages()[stage])
        modules += [f"dopsd.tasks.{task}.task"] if f"tasks/{task}" in links else []
        is_learning = f"algorithms/{algorithm}" in links
        modules += [f"dopsd.algorithms.{algorithm}.algorithm"] if is_learning else []
        files = {path.relative_to(ROOT / "dopsd").as_posix() for path in sources(*modules).values()}
        assert {
            f for f in files if not any(f == d or f.startswith(f"{d}/") for d in links)
        } == set()
        missing = [link for link in links if not (ROOT / "code" / link).exists()]
        assert missing == [], "`dopsd repro` makes these links in code/; commit them"


def test_the_command_line_starts_without_heavy_libraries_and_the_core_without_the_platform():
    """One process for both; a bare GPU machine has torch, transformers and peft, but no mlflow,
    prefect, dvc or datasets.
    """
    code = (
        "import sys, dopsd.cli.main\nassert not {'torch', 'peft', 'mlflow', 'transformers'} &"
        " set(sys.modules)\nfor name in ('mlflow', 'prefect', 'dvc', 'datasets'): sys.modules[name]"
        " = None\nimport dopsd.pipeline.stages.train, dopsd.algorithms.d_opsd.algorithm,"
        " dopsd.models.llada.modeling\n"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_text_is_read_and_written_as_utf_8_whatever_the_locale():
    paths = [*FILES, *(ROOT / "flows").rglob("*.py"), *(ROOT / "infra").rglob("*.py")]
    found = []
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func).rpartition(".")[2]
                told = {k.arg: ast.unparse(k.value) for k in node.keywords}
                is_text = name in ("read_text", "write_text") or told.get("text") == "True"
                is_text |= name in ("open", "fdopen") and not any(
                    isinstance(a, ast.Constant) and "b" in str(a.value) for a in node.args
                )
                if is_text and "encoding" not in told and "os.open" not in ast.unparse(node):
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert found == []


def test_no_module_is_longer_than_400_lines():
    paths = [*FILES, *(ROOT / "flows").glob("*.py")]
    assert {str(p): n for p in paths if (n := len(p.read_text().splitlines())) > 400} == {}
