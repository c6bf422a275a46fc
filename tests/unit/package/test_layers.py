"""The house's plan: which package imports which, where libraries come in, what DVC names."""

import ast
import re
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
import yaml
from conftest import ROOT
from imports import imported, sources

from dopsd.algorithms.registry import ALGORITHMS, FAMILIES
from dopsd.tasks.registry import TASKS

# Lowest first. A module imports from its own package and from packages below it.
LAYERS = [
    *({"core"}, {"distributed"}, {"models"}, {"tasks"}, {"rollout"}, {"algorithms"}, {"training"}),
    *({"evaluation"}, {"tracking", "analysis"}, {"config"}, {"pipeline"}, {"api"}, {"serving"}),
    *({"cli"}, {"__main__"}),
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


def is_allowed(module: str, other: str) -> bool:
    """Whether a module of dopsd may import another one."""
    room, *rest = module.split(".")[1:]
    other_room, *other_rest = other.split(".")[1:]
    if room != other_room:
        return HEIGHT[other_room] < HEIGHT[room]
    folders = {parts[0] for parts in (rest, other_rest) if parts}
    family = FAMILIES.get(rest[0], ()) if rest else ()
    return room not in SIBLINGS or not rest or folders <= {rest[0], *family, "common", "registry"}


def test_imports_run_downward_and_never_to_a_sibling():
    assert not is_allowed("dopsd.core.rng", "dopsd.models.policy")
    assert not is_allowed("dopsd.algorithms.sft.algorithm", "dopsd.algorithms.spg.algorithm")
    pairs = [
        (name_of(path), module)
        for path in FILES
        if path.parent.name != "dopsd"
        for module in imported(path, with_types=True)
    ]
    wrong = [pair for pair in pairs if not is_allowed(*pair)]
    assert len(pairs) > 500 and not wrong, f"{wrong}: a parent is named in FAMILIES"


def test_no_modules_import_each_other_in_a_circle():
    TopologicalSorter({name_of(path): imported(path) for path in FILES}).prepare()


def test_libraries_come_in_only_where_they_are_allowed():
    found = set()
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            tops = {name.split(".")[0] for name in names} & DOORS.keys()
            found |= {(top, name_of(path).split(".")[1]) for top in tops}
    assert {room for top, room in found if top == "peft"} == DOORS["peft"]
    assert [(top, room) for top, room in found if room not in DOORS[top]] == []


@cache
def stages() -> dict:
    return yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]


def modules_of(stage: dict) -> list[str]:
    """The stages that the commands run, `python -m dopsd <stage> ...`."""
    commands = stage["cmd"] if isinstance(stage["cmd"], list) else [stage["cmd"]]
    return [f"dopsd.pipeline.stages.{command.split()[3]}" for command in commands]


OTHER_NUMBERS = {"prepare", "pretrain"}  # their numbers are in params.yaml: test_recipe_numbers.py


def filled(name: str, task: str, algorithm: str) -> str:
    return re.sub(r"\$\{\w+\.task\}", task, re.sub(r"\$\{\w+\.method\}", algorithm, name))


@cache
def key_of(path: Path) -> str:
    """The number in recipes.yaml that stands for a file; registries change no result."""
    room, *rest = path.relative_to(ROOT / "dopsd").with_suffix("").parts
    if rest == ["registry"] or room in ("config", "__init__"):  # config/ only reads params.yaml
        return ""
    if room == "pipeline":
        has_number = rest[0] == "stages" and rest[-1] not in OTHER_NUMBERS
        return f"stages.{rest[-1]}" if has_number else ""
    return f"{room}.{rest[0]}" if room in SIBLINGS and rest[0] != "__init__" else room


@cache
def keys_of(module: str) -> set[str]:
    return {key_of(path) for path in sources(module).values()} - {""}


@pytest.mark.parametrize("stage", sorted(stages().keys() - OTHER_NUMBERS))
def test_a_stage_depends_on_the_numbers_of_the_code_that_it_imports(stage: str):
    ((_, names),) = next(p for p in stages()[stage]["params"] if isinstance(p, dict)).items()
    for algorithm in ALGORITHMS.names:
        for task in TASKS.names:
            keys = {filled(name, task, algorithm) for name in names}
            modules = modules_of(stages()[stage])
            modules += [f"dopsd.tasks.{task}.task"] if f"tasks.{task}" in keys else []
            is_learning = f"algorithms.{algorithm}" in keys
            modules += [f"dopsd.algorithms.{algorithm}.algorithm"] if is_learning else []
            needed = set().union(*map(keys_of, modules))
            needed -= {f"algorithms.{parent}" for parent in FAMILIES.get(algorithm, ())}
            assert needed <= keys, f"{stage} with {algorithm} on {task}"


def test_a_stage_that_tests_protocols_depends_on_the_race_whose_protocol_is_left_out():
    for name, stage in stages().items():
        texts = [(ROOT / f"{m.replace('.', '/')}.py").read_text() for m in modules_of(stage)]
        if any("test_protocols" in text for text in texts):
            assert "select" in stage["params"], name


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


def test_files_that_docstrings_name_exist():
    known = {path.name for path in (*FILES, *(ROOT / "flows").rglob("*.py"))}
    known |= {path.name for room in ("infra", "tests") for path in (ROOT / room).rglob("*.py")}
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    gone = {
        (path.name, name)
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, kinds)
        for name in re.findall(r"\b\w+\.py\b", ast.get_docstring(node) or "")
        if name not in known
    }
    assert gone == set()
