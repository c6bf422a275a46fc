"""The house's plan: who may import whom, where each library comes in, and that dvc.yaml names what a stage imports."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import ROOT

from dopsd.config import AlgorithmsConfig
from dopsd.provenance import closure, imported, sources

LAYERS = [  # lowest first; a module imports only from layers below its own, and never a sibling
    {"errors", "patient_dvc"},
    {"config"},
    {"params"},
    {"batches"},
    {"types"},
    {"keyed", "provenance", "lines", "drawing", "memory"},
    {"progress"},
    {
        "writer_lock",
        "tracking",
        "views",
        "registry",
        "tasks",
        "models",
        "sampling",
        "teacher",
        "losses",
        "checkpoint",
        "collapse",
    },
    {"layout", "masking", "solutions", "approximate"},
    {"attempts", "resuming"},
    {"older", "other_releases"},
    {"run_identity"},
    {"interrupts", "origin", "runfolder", "card", "ranks", "stepping", "accumulating"},
    {"writing"},
    {"scoring"},
    {"answering", "distilling", "recording"},
    {"evaluations"},
    {"methods"},
    {"stages"},
    {
        "finished",
        "cleaning",
        "publish",
        "show",
        "export",
        "estimate",
        "profiles",
        "generations",
        "launch",
    },
    {"tables", "unchanged"},
    {"measure", "rehearse", "rescore", "baselines", "compare", "ablate", "doctor"},
    {"arguments"},
    {"cli"},
    {"__main__"},
]
DOORS = {
    "mlflow": {"tracking", "publish", "registry"},
    "prefect": set(),
    "peft": {"models", "checkpoint"},
    "transformers": {"models", "checkpoint"},
    "datasets": {"tasks"},
    "accelerate": {"stages", "runfolder", "ranks", "stepping"},
    "dvc": {"writing"},
}
FILES = sorted((ROOT / "dopsd").rglob("*.py"))


def room(module: str) -> str:
    return module.split(".")[1]


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.mark.parametrize(
    "path", [p for p in FILES if p.parent.name != "dopsd" or p.stem != "__init__"], ids=name_of
)
def test_imports_run_strictly_downward(path: Path):
    height = {name: i for i, layer in enumerate(LAYERS) for name in layer}
    own = name_of(path)
    for other in imported(path):
        if room(other) == room(own):
            assert room(own) not in ("methods", "stages") or other in (f"dopsd.{room(own)}",), (
                f"{own} imports {other}"
            )
        else:
            assert height[room(other)] < height[room(own)], f"{own} imports {other}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_libraries_come_in_through_their_doors(path: Path):
    for node in ast.walk(ast.parse(path.read_text())):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        for name in names:
            top = name.split(".")[0]
            if top in DOORS:
                assert room(name_of(path)) in DOORS[top], f"{name_of(path)} imports {top}"


def stages() -> dict:
    return yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]


def modules_of(found: dict) -> list[str]:
    """The stages that the commands run, `python -m dopsd <stage> ...`."""
    commands = found["cmd"] if isinstance(found["cmd"], list) else [found["cmd"]]
    return [f"dopsd.stages.{command.split()[3]}" for command in commands]


RECIPES = {
    "prepare",
    "pretrain",
}  # a number in params.yaml stands for their code: tests/test_recipes.py


def test_stages_with_a_recipe_depend_on_no_code():
    assert [
        dep for stage in RECIPES for dep in stages()[stage]["deps"] if dep.endswith(".py")
    ] == []


@pytest.mark.parametrize("stage", sorted(stages().keys() - RECIPES))
def test_a_stage_depends_on_the_code_that_it_imports(stage: str):
    found = stages()[stage]
    given = dict.fromkeys(("item.task", "ablate.task"), "sudoku") | dict.fromkeys(
        ("item.method", "ablate.method"), "d_opsd"
    )
    filled = {
        re.sub(r"\$\{(.*?)\}", lambda match: given.get(match[1], "0"), dep) for dep in found["deps"]
    }
    modules = [
        *modules_of(found),
        *(["dopsd.tasks.sudoku"] if "dopsd/tasks/sudoku.py" in filled else []),
    ]
    methods = AlgorithmsConfig.model_fields if "dopsd/methods/d_opsd.py" in filled else []
    others = {f"dopsd/methods/{method}.py" for method in methods} - {"dopsd/methods/d_opsd.py"}
    modules += [
        f"dopsd.methods.{method}" for method in methods
    ]  # one list for all: what any of them imports
    needed = {str(path.relative_to(ROOT)) for path in sources(*modules)} - others
    assert needed <= filled, sorted(needed - filled)
    assert {dep for dep in filled if dep.endswith(".py")} <= needed, (
        "a dependency that is not imported"
    )


def test_what_is_loaded_by_name_is_a_dependency_where_it_is_loaded():
    loading = {
        "dopsd.tasks": r"dopsd/tasks/\$\{.*task\}\.py",
        "dopsd.methods": r"dopsd/methods/\$\{.*method\}\.py",
    }
    for stage in stages().keys() - RECIPES:
        found = stages()[stage]
        for module, dependency in loading.items():
            is_loading = any(
                "load_task(" in p.read_text() or "load_method(" in p.read_text()
                for p in sources(*modules_of(found))
            )
            if module in closure(*modules_of(found)) and is_loading:
                assert any(re.fullmatch(dependency, dep) for dep in found["deps"]), (
                    f"{stage} lacks {dependency}"
                )


def test_the_core_imports_without_the_platform():
    """A bare GPU machine has torch, transformers and peft, but no mlflow, prefect, dvc or datasets."""
    code = (
        "import sys\n"
        "for name in ('mlflow', 'prefect', 'dvc', 'datasets'): sys.modules[name] = None\n"
        "import dopsd.stages.train, dopsd.methods.d_opsd, dopsd.sampling, dopsd.losses, dopsd.models.llada\n"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_the_command_line_starts_without_heavy_libraries():
    code = "import sys, dopsd.cli\nassert not {'torch', 'peft', 'mlflow', 'transformers'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_no_module_is_longer_than_350_lines():
    assert {p.name: n for p in FILES if (n := len(p.read_text().splitlines())) > 350} == {}
