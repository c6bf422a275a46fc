"""The walk of docs/own-task.md, command by command; then a program scores the task."""

import json
from pathlib import Path

import pytest
from test_docs import blocks
from workspace import Workspace

MARK = "tests/e2e/test_own_task.py"


@pytest.mark.full
def test_the_walk_of_the_page_runs_and_a_program_can_score_it(tmp_path: Path):
    workspace = Workspace(tmp_path, is_shipped=True, is_warm=True)
    *commands, program = [
        block for block in blocks() if block.page.name == "own-task.md" and MARK in block.words
    ]
    said = [workspace.run("bash", "-euo", "pipefail", "-c", block.text) for block in commands]
    assert any("puzzles: the rows, prompts and verifier fit" in text for text in said)
    assert any("evaluate_base: base scores " in text for text in said)
    assert any("puzzles/d_opsd/0" in text for text in said)  # `dopsd summary`
    folder = tmp_path / "runs/puzzles/d_opsd/0"
    assert json.loads((folder / "train.json").read_text())["updates"] == 2
    base = json.loads((folder / "test.json").read_text())
    assert base and (tmp_path / "reports/puzzles/d_opsd/0/accuracy.png").is_file()
    assert json.loads(workspace.dvc("status", "--json")) == {}
    verifier = "{type: command, program: [python, data/external/score.py], graded: true}"
    (tmp_path / "data/external/score.py").write_text(program.text)
    workspace.run("dopsd", "params", "--set", f"data.puzzles.verifier={verifier}")
    checked = workspace.run("dopsd", "task", "check", "puzzles")
    assert "200 of 200 own answers get full marks" in checked
    stale = json.loads(workspace.dvc("status", "--json"))
    assert {"prepare@puzzles", "train@puzzles-d_opsd-0"} <= stale.keys()
