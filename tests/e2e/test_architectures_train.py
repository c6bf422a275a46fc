"""Every algorithm that fits takes two updates on a toy of an architecture, and the last checkpoint
is exported: of two architectures in the second tier, of all in `make nightly`, which also runs
all algorithms by `dvc repro` and by the deployment. LLaDA's is that of `two_updates`.
"""

import json
import math
from pathlib import Path

import pytest
import torch
from conftest import write_params
from deployed import run_by
from safetensors.torch import load_file
from trained_toys import BASES, BD3LM, make_base, model_of, settings
from workspace import Workspace

from dopsd.algorithms.registry import ALGORITHMS
from dopsd.cli.main import main
from dopsd.config.loading import load_params
from dopsd.core.tables import read_table
from dopsd.models.config import ModelConfig
from dopsd.models.llm_policy import load_policy

OFTEN = ("llada2_moe", BD3LM)  # experts and blocks, a shifted output


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.full if name in OFTEN else pytest.mark.nightly)
        for name in BASES
    ],
)
def test_each_algorithm_takes_two_updates(name: str, project: Path):
    make_base(name)
    write_params(**settings(name))
    for method in ALGORITHMS.names:
        assert main(["train", "--method", method]) == 0, method
        run = Path("runs/sudoku") / method / "0"
        losses = [row["loss"] for row in read_table(run / "train.csv")]
        assert len(losses) == 2 and all(map(math.isfinite, losses)), method
        last = sorted((run / "train").glob("step-*"))[-1]
        adapter = load_file(last / "adapter_model.safetensors")
        moved = [n for n, t in adapter.items() if "lora_B" in n and t.abs().max() > 0]
        assert len(moved) == len(adapter) // 2, method
    assert json.loads((run / "train.json").read_text())["updates"] == 2
    exported = ["export", "--merged", "--adapter", str(last), "--out", "merged"]
    assert main(exported) == 0  # the base, and its blocks, are those of params.yaml
    trained = load_policy(model_of(name), load_params().train.lora, 0)
    trained.load(last)
    merged = load_policy(ModelConfig(path="merged"), None, 0)
    ids = torch.randint(2, 100, (2, 24), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        both = [policy.head(policy.hidden(ids, None)) for policy in (trained, merged)]
    assert (both[0] - both[1]).abs().max() <= 1e-4


def run_all(by: str, name: str, methods: list[str], folder: Path) -> None:
    """Run every stage with these methods, and require that each was trained and tested."""
    made = Workspace(folder, is_warm=True)
    assert main(["prepare", "--task", "sudoku"]) == 0
    make_base(name)
    (folder / "base").mkdir()  # stages depend on the folder
    changes = settings(name) | {"matrix__methods": methods}
    run_by(by, made, changes)
    for method in methods:
        run = folder / "runs/sudoku" / method / "0"
        assert json.loads((run / "train.json").read_text())["updates"] == 2, method
        assert (run / "test.json").is_file(), method


@pytest.mark.nightly
@pytest.mark.parametrize("name", BASES)
@pytest.mark.parametrize("by", ["dvc", "deployment"])
def test_every_algorithm_runs_on_every_architecture(by: str, name: str, tmp_path: Path, here: Path):
    run_all(by, name, ALGORITHMS.names, tmp_path)
