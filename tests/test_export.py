"""Merging an adapter: labelled, reversible to the bit, exported with what rounding took."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from conftest import write_params
from transformers import AutoModelForMaskedLM

from dopsd.cli import main
from dopsd.config import Lora, Model
from dopsd.errors import DopsdError
from dopsd.export import Loss
from dopsd.models import LlmPolicy, load_policy
from dopsd.models.lora import changes, load_adapter, lora_of

IDS = torch.arange(4, 24).view(2, 10)
ADAPTER = Path("runs/sudoku/d_opsd/0/train/step-000004")


def logits(policy: LlmPolicy) -> torch.Tensor:
    with torch.no_grad():
        return policy.head(policy.hidden(IDS, None)).float()


def adapted(path: str, dtype: str = "float32") -> LlmPolicy:
    """The base with an adapter that changes it: B is no longer zero."""
    policy = load_policy(Model(path=path, dtype=dtype), Lora(r=4, alpha=8, dropout=0.0), 0)
    torch.manual_seed(1)
    for name, p in policy.trainable().items():
        if "lora_B" in name:
            p.data.normal_(std=0.05)
    return policy


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_merged_policy_computes_alike_and_afterwards_has_its_old_weights(project, dtype: str):
    policy = adapted("base", dtype)
    before = {name: p.clone() for name, p in policy.core.named_parameters()}
    unmerged = logits(policy)
    with policy.merged():
        merged = logits(policy)
    with policy.reference():
        plain = logits(policy)
    tolerance = 1e-4 if dtype == "float32" else 0.1 * (unmerged - plain).abs().max()
    assert (merged - unmerged).abs().max() <= tolerance < (unmerged - plain).abs().max()
    assert all(torch.equal(p, before[name]) for name, p in policy.core.named_parameters())
    assert torch.equal(logits(policy), unmerged)


def test_the_loss_of_rounding_by_hand():
    loss = Loss()
    before, change = torch.tensor([[1.0, 1.0]]), torch.tensor([[0.25, 0.001]])
    loss.add(before, change, (before + change).bfloat16().float())  # 0.001 is less than half a step of 1/128 at 1
    assert loss.share == pytest.approx(0.001 / (0.25**2 + 0.001**2) ** 0.5)
    assert (loss.still, loss.weights) == (1, 2)


def test_an_exported_model_loads_with_plain_transformers_and_computes_alike(project, capsys):
    write_params(train__warmup_updates=0, train__learning_rate=1e-2)
    assert main(["train"]) == 0
    policy = load_policy(Model(path="base"), lora_of(ADAPTER), 0)
    from dopsd.checkpoint import read_adapter

    load_adapter(policy.adapted, read_adapter(ADAPTER))
    assert max(change.abs().max() for *_, change in changes(policy.adapted)) > 1e-4
    assert main(["export", "--merged", "--adapter", str(ADAPTER), "--out", "merged"]) == 0
    assert "0.00% of the adapter's change was lost" in capsys.readouterr().err
    plain = AutoModelForMaskedLM.from_pretrained("merged")
    with torch.no_grad():
        assert (plain(IDS).logits - logits(policy)).abs().max() <= 1e-5
    assert load_policy(Model(path="merged"), None, 0).tokenizer.chat_template == policy.tokenizer.chat_template
    assert main(["export", "--merged", "--adapter", str(ADAPTER), "--out", "half", "--dtype", "bfloat16"]) == 0
    assert "--dtype float32" in capsys.readouterr().err
    assert main(["export", "--merged", "--adapter", str(ADAPTER), "--out", "half"]) == 2
    assert "--out half: it exists" in capsys.readouterr().err
    assert main(["export", "--adapter", str(ADAPTER), "--out", "other"]) == 2
    assert "only --merged" in capsys.readouterr().err


def test_an_adapter_brings_its_own_shape_and_an_odd_one_is_said(project, tmp_path):
    assert main(["train"]) == 0
    assert lora_of(ADAPTER) == Lora(r=4, alpha=4, dropout=0.0, targets=["k_proj", "q_proj", "up_proj", "v_proj"])
    with pytest.raises(DopsdError, match=r"no adapter_config\.json"):
        lora_of(tmp_path)
    (tmp_path / "adapter_config.json").write_text('{"r": 4}')
    with pytest.raises(DopsdError, match="not a LoRA config of peft"):
        lora_of(tmp_path)
