"""Every algorithm that fits takes two updates on a toy of every architecture of the hub; the last
checkpoint is exported.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from conftest import write_params
from hub_toys import NAMES, save_hub
from safetensors.torch import load_file

from dopsd.algorithms.registry import ALGORITHMS
from dopsd.cli.main import main
from dopsd.config.loading import load_params
from dopsd.core.tables import read_table
from dopsd.models.config import ModelConfig
from dopsd.models.llm_policy import load_policy
from dopsd.tasks.registry import load_task
from dopsd.training.pretrain import Pretrainer

BASE = Path("models/toy")
BLOCKS = 8  # as sampling.block_length
FITS = {  # what a block-causal base learns from
    "method__d_opsd__reveal_scope": "all_masked",
    "method__infill__teacher_attention": "all",
    "method__routed__distil_weight": 0.0,
}
TARGETS = {  # of a mixture none of its experts
    "llada2_moe": ["query_key_value", "dense"],
    "llada_moe": ["q_proj", "o_proj"],
}


def pretrain(name: str) -> bool:
    """Write a toy that can nearly answer puzzles; return whether it is block-causal."""
    has_blocks = name in {"sdar", "llada2_moe"}
    changes = {"max_position_embeddings": 256, "rope_theta": 100.0}
    changes |= {"block_size": BLOCKS} if has_blocks else {}
    save_hub(BASE, name, **changes)
    raw = (BASE / "config.json").read_text()
    policy = load_policy(ModelConfig(path=str(BASE)), None, 0)
    policy.core.requires_grad_(True)
    params = load_params()
    task = load_task("sudoku", params.data.sudoku)
    trainer = Pretrainer(params.embedded_base("sudoku"), task, policy)
    for update in range(150):
        trainer.step(update)
    policy.core.save_pretrained(BASE)
    (BASE / "config.json").write_text(raw)
    return has_blocks


@pytest.mark.full
@pytest.mark.parametrize("name", [*NAMES, "llada2_moe"])
def test_each_algorithm_takes_two_updates(name: str, project: Path):
    has_blocks = pretrain(name)
    targets = TARGETS.get(name, ["q_proj", "down_proj"])
    changes = {"model__path": str(BASE), "pretrain__tasks": [], "train__updates": 2}
    changes |= {"train__lora__targets": targets} | (FITS if has_blocks else {})
    write_params(**changes)
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
    assert main([*exported, "--model", str(BASE)]) == 0
    trained = load_policy(ModelConfig(path=str(BASE)), load_params().train.lora, 0)
    trained.load(last)
    merged = load_policy(ModelConfig(path="merged"), None, 0)
    ids = torch.randint(2, 100, (2, 24), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        both = [policy.head(policy.hidden(ids, None)) for policy in (trained, merged)]
    assert (both[0] - both[1]).abs().max() <= 1e-4
