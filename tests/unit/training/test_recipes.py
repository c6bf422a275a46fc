"""Numbers that recipes stand for: whoever changes one on purpose raises its recipe."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
import yaml
from conftest import small_params
from toy_project import TOY, make

from dopsd.cli.main import main
from dopsd.config.params import Params
from dopsd.core.tensor_files import load_tensors
from dopsd.pipeline.stages.prepare import PREPARED
from dopsd.tasks.registry import load_task
from dopsd.training.pretraining.pretrain import Pretrainer, fresh

LOSSES = [5.2202191, 3.4363620, 3.3191786, 2.7678347, 2.4632528, 2.0841327]
SHAPE = {"updates": 6, "batch_size": 16, "learning_rate": 0.02}
SHAPE |= {"warmup_updates": 2, "weight_decay": 2.0, "seed": 3}
ROWS = {
    "gsm8k": [
        {"question": f"What is {n} + {n}?", "answer": f"{n} + {n} = {2 * n}\n#### {2 * n}"}
        for n in range(20)
    ],
    "math500": [
        {"problem": f"What is ${n}^2$?", "solution": rf"\boxed{{{n * n}}}", "answer": str(n * n)}
        for n in range(20)
    ],
}
DIGESTS = {  # of the problems, by task and recipe
    ("sudoku", 2): "248afb0a54af5d57",
    ("gsm8k", 1): "48f6cb239e9bb3ee",
    ("math500", 1): "a63e433016adaff3",
    ("countdown", 3): "7f024f5a04b7c8a4",
    ("chains", 1): "7d6e5d39f4c29e0d",
}


def test_the_first_updates_of_pretraining_have_the_losses_of_this_recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    raw = small_params(data__sudoku__test=256, data__sudoku__validation=256)
    raw["pretrain"] |= SHAPE
    Path("params.yaml").write_text(yaml.safe_dump(raw))
    assert main(["prepare"]) == 0
    params = Params.model_validate(raw)
    base = params.embedded_base("sudoku")
    trainer = Pretrainer(base, load_task("sudoku", params.data.sudoku), fresh(base))
    assert params.pretrain.recipe == 1
    assert [trainer.step(update) for update in range(SHAPE["updates"])] == pytest.approx(
        LOSSES, rel=1e-4
    )


def rows(name: str, found: list[dict]) -> dict:
    path = Path(f"data/external/{name}.jsonl")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in found))
    return {"path": str(path), "name": None, "split": "train", "revision": None}


@pytest.mark.parametrize(("task", "recipe"), DIGESTS)
def test_the_same_settings_make_the_same_problems(tmp_path, monkeypatch, task, recipe):
    monkeypatch.chdir(tmp_path)
    raw = small_params(matrix__methods=["rft"])
    raw["data"]["sudoku"] |= {"test": 256, "validation": 256}
    for name, made in ROWS.items():
        files = {"train": rows(f"{name}-train", made[:14]), "test": rows(f"{name}-test", made[14:])}
        raw["data"][name] |= files | {"validation": 5}
    raw["data"]["countdown"] |= {"generate": 12, "generate_test": 5, "validation": 5}
    raw["data"]["chains"] |= {"train": 12, "validation": 5, "test": 5}
    Path("params.yaml").write_text(yaml.safe_dump(raw))
    assert main(["prepare", "--task", task]) == 0
    made = sorted(set(Path("data", task).iterdir()) - {Path("data", task, PREPARED)})
    found = b"".join(path.read_bytes() for path in made)
    assert raw["data"][task]["recipe"] == recipe
    assert hashlib.sha256(found).hexdigest()[:16] == DIGESTS[task, recipe]


@pytest.mark.full
def test_the_committed_toy_is_what_the_stages_make(tmp_path):
    """Its weights to rounding, which differs between processors; all else to the byte."""
    make(tmp_path / "toy")
    files = {folder: contents(folder) for folder in (TOY, tmp_path / "toy")}
    committed, made = files.values()
    assert committed == made
    weights = [load_tensors(folder / "base/sudoku/model.safetensors") for folder in files]
    torch.testing.assert_close(*weights, rtol=0, atol=0.01)


def contents(folder: Path) -> dict[str, object]:
    """What stands in each file but the weights and the version of transformers."""
    found: dict[str, object] = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".safetensors"
    }
    config, record = (json.loads(found[f"base/sudoku/{n}.json"]) for n in ("config", "pretrain"))
    del config["transformers_version"]
    del record["files"]["config.json"], record["files"]["model.safetensors"]
    return found | {"base/sudoku/config.json": config, "base/sudoku/pretrain.json": record}
