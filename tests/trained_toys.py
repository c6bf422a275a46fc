"""Toys of every architecture of the hub that can nearly answer puzzles, and settings for them."""

from __future__ import annotations

import shutil
from pathlib import Path

from conftest import ROOT
from hub_toys import NAMES, save_hub

from dopsd.algorithms.registry import ALGORITHMS
from dopsd.config.loading import load_params
from dopsd.models.config import ModelConfig
from dopsd.models.llm_policy import load_policy
from dopsd.tasks.registry import load_task
from dopsd.training.pretraining.pretrain import Pretrainer

BASE = Path("models/toy")
EMBEDDED = "sudoku_blocks"  # made by the stage pretrain
BD3LM = "a2d-qwen3 in blocks"  # which no file tells from the other
BASES = [*NAMES, "llada2_moe", BD3LM, EMBEDDED]
BLOCKS = 8  # as sampling.block_length
FITS = {  # what a block-causal base learns from
    "method__d_opsd__reveal_scope": "all_masked",
    "method__infill__teacher_attention": "all",
}
TARGETS = {  # of a mixture none of its experts
    "llada2_moe": ["query_key_value", "dense"],
    "llada_moe": ["q_proj", "o_proj"],
}


def make_base(name: str) -> None:
    """Write the base to BASE, with the settings and the tokenizer of the project around it."""
    if name == EMBEDDED:
        shutil.copytree(ROOT / "base" / EMBEDDED, BASE)
        return
    changes = {"max_position_embeddings": 256, "rope_theta": 100.0}
    changes |= {"block_size": BLOCKS} if has_blocks(name) and name != BD3LM else {}
    save_hub(BASE, name.removesuffix(" in blocks"), **changes)
    raw = (BASE / "config.json").read_text()
    policy = load_policy(model_of(name), None, 0)
    policy.core.requires_grad_(True)
    params = load_params()
    task = load_task("sudoku", params.data.sudoku)
    trainer = Pretrainer(params.embedded_base("sudoku"), task, policy)
    for update in range(150):
        trainer.step(update)
    policy.core.save_pretrained(BASE)
    (BASE / "config.json").write_text(raw)


def has_blocks(name: str) -> bool:
    return name in {"sdar", "llada2_moe", BD3LM, EMBEDDED}


def model_of(name: str) -> ModelConfig:
    """Section `model` of the settings."""
    return ModelConfig(path=str(BASE), block_size=BLOCKS if name == BD3LM else None)


def settings(name: str) -> dict[str, object]:
    """Changes to the small settings, as keys of `small_params`."""
    targets = TARGETS.get(name, ["q_proj", "down_proj"])
    changes: dict[str, object] = {"model__path": str(BASE), "pretrain__tasks": []}
    changes |= {"train__updates": 2, "train__lora__targets": targets}
    changes |= {"model__block_size": BLOCKS} if name == BD3LM else {}
    if name == EMBEDDED:  # it is sure of its answers, and rewards of a group must differ
        changes |= {
            f"method__{method}__temperature": 3.0
            for method in ALGORITHMS.names
            if "temperature" in ALGORITHMS.config_class(method).model_fields
        }
    return changes | (FITS if has_blocks(name) else {})
