"""Both entry points, each in a fresh clone with a cache of its own: `dvc repro`, and the deployment
run by a worker.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml
from deployed import services, submit, submit_changes
from workspace import Workspace, overrides


def results(folder: Path) -> dict[str, object]:
    """Hash of every output by path, from dvc.lock, and the metrics."""
    stages = yaml.safe_load((folder / "dvc.lock").read_text())["stages"]
    outs = {out["path"]: out["md5"] for stage in stages.values() for out in stage["outs"]}
    return outs | {path: (folder / path).read_text() for path in outs if path.endswith(".json")}


@pytest.mark.full
def test_both_entry_points_give_the_same_bytes(tmp_path: Path):
    by_dvc, by_flow = (Workspace(tmp_path / name, is_warm=True) for name in ("dvc", "flow"))
    words = [f"--set={key}={json.dumps(value)}" for key, value in overrides().items()]
    by_dvc.run(sys.executable, "-m", "dopsd", "params", "--profile", "embedded", *words)
    by_dvc.repro()

    with services(by_flow) as told:
        assert "`source work/services/env`: prefect deployment run dopsd/train" in told
        refused = submit(by_flow, overrides={"train.updats": 5})
        assert refused.returncode == 1
        assert "('train.updats' was unexpected)" in " ".join(refused.stdout.split())
        submit_changes(by_flow, overrides(), evaluate_while_training=True)

    assert results(tmp_path / "flow") == results(tmp_path / "dvc")
    assert (tmp_path / "flow/params.yaml").read_text() == (tmp_path / "dvc/params.yaml").read_text()
    names = ("train/checkpoints.json", "evaluate.json", "best", "test.json")
    wanted = {"data/sudoku/train.jsonl", "base/sudoku"}
    wanted |= {f"runs/sudoku/d_opsd/0/{name}" for name in names}
    assert wanted <= results(tmp_path / "dvc").keys()
    assert "up to date" in by_flow.dvc("status") and by_flow.repro() == set()
