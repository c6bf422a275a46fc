"""Workflows of .github: schema, what they run, versions of Python, pinned actions, permissions."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from conftest import ROOT
from packaging.specifiers import SpecifierSet
from packaging.version import Version

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
ALLOWED = SpecifierSet(
    tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
)


def jobs(name: str) -> dict:
    return yaml.safe_load((ROOT / ".github/workflows" / name).read_text())["jobs"]


def commands(job: dict) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]


def python_of(job: dict) -> str:
    return next(
        step["with"]["python-version"]
        for step in job["steps"]
        if "setup-python" in step.get("uses", "")
    )


def lowest_allowed() -> Version:
    return min(Version(f"3.{minor}") for minor in range(30) if f"3.{minor}" in ALLOWED)


def test_workflows_follow_the_schema():
    program = Path(sys.executable).parent / "check-jsonschema"
    found = subprocess.run(
        [program, "--builtin-schema", "vendor.github-workflows", *WORKFLOWS],
        capture_output=True,
        text=True,
    )
    assert len(WORKFLOWS) == 2 and found.returncode == 0, found.stdout + found.stderr


def test_a_change_is_checked_by_ci_run_on_the_lowest_python():
    job = jobs("ci.yml")["check"]
    assert commands(job)[-1] == ".ci/run" and (ROOT / ".ci/run").stat().st_mode & 0o100
    assert Version(python_of(job)) == lowest_allowed()


def test_each_night_tests_the_lowest_versions_and_a_newer_python():
    job = jobs("nightly.yml")["versions"]
    python = {
        row["versions"]: Version(row["python"]) for row in job["strategy"]["matrix"]["include"]
    }
    assert python["lowest"] == lowest_allowed() and python["newest"] > python["lowest"]
    assert all(version in ALLOWED for version in python.values())
    assert commands(job) == ['make "$VERSIONS"']
    script = (ROOT / ".ci/versions").read_text()
    assert all(re.search(rf"^  {name}\) resolution=", script, re.MULTILINE) for name in python)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_pin_actions_end_in_time_and_may_only_read(path: Path):
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 90 and "permissions" not in job
        uses = [step["uses"] for step in job["steps"] if "uses" in step]
        assert uses and all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", name) for name in uses)
