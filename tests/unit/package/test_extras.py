"""What `pip install dopsd` leaves out, and the line of a command that needs more."""

import sys
import tomllib

import pytest
from conftest import ROOT, write_params
from packaging.requirements import Requirement

from dopsd.core.extras import EXTRAS

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# by this package of the extra
BROUGHT = {"liger_kernel": "liger-kernel", "math_verify": "math-verify", "pyarrow": "datasets"}
BROUGHT["reasoning_gym"] = "reasoning-gym"
COMMANDS = {
    **dict.fromkeys(("publish", "baselines import", "follow"), "mlflow"),
    **dict.fromkeys(("report", "compare", "verify-teacher"), "matplotlib"),
    **dict.fromkeys(("ablate reveal", "repro", "commit"), "dvc"),
}


def names(requirements: list[str]) -> set[str]:
    return {Requirement(line).name for line in requirements}


def test_each_optional_package_is_in_its_extra_and_not_in_the_core():
    assert names(PROJECT["dependencies"]) & EXTRAS.keys() == set()
    extras = {name: names(lines) for name, lines in PROJECT["optional-dependencies"].items()}
    assert {p for p, extra in EXTRAS.items() if BROUGHT.get(p, p) not in extras[extra]} == set()


@pytest.mark.parametrize(("words", "package"), COMMANDS.items())
def test_a_command_that_lacks_a_package_says_so_in_one_line(
    words: str, package: str, project, monkeypatch, refusal
):
    write_params(tracking__enabled=True)
    monkeypatch.setitem(sys.modules, package, None)
    command, extra = words.split()[0], EXTRAS[package]
    line = f"dopsd: {command}: {package} is not installed; pip install 'dopsd[{extra}]' (D701)\n"
    assert refusal(*words.split()) == line


def test_a_dataset_that_needs_a_package_is_named_by_its_key_or_file(project, monkeypatch, refusal):
    (project / "data/external").mkdir(exist_ok=True)
    (project / "data/external/rows.parquet").touch()
    for package in ("datasets", "pyarrow"):
        monkeypatch.setitem(sys.modules, package, None)
    end = "is not installed; pip install 'dopsd[data]' (D701)\n"
    for said in ("data.gsm8k.test.path: datasets", "data/external/rows.parquet: pyarrow"):
        assert refusal("prepare", "--task", "gsm8k") == f"dopsd: {said} {end}"
        write_params(data__gsm8k__test={"path": "data/external/rows.parquet"})
