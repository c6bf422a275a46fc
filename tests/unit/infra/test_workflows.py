"""Workflows of .github: schema, pinned actions, permissions."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import ROOT

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def test_workflows_follow_the_schema():
    program = Path(sys.executable).parent / "check-jsonschema"
    found = subprocess.run(
        [program, "--builtin-schema", "vendor.github-workflows", *WORKFLOWS],
        capture_output=True,
        text=True,
    )
    assert len(WORKFLOWS) == 3 and found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_pin_actions_end_in_time_and_may_only_read(path: Path):
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 90 and "permissions" not in job
        uses = [step["uses"] for step in job["steps"] if "uses" in step]
        assert uses and all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", name) for name in uses)
