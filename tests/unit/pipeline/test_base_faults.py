"""Bases that cannot be used, or not so: what `dopsd inspect`, `check` and `estimate` say."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import ChainMap
from pathlib import Path

import pytest
import torch
from conftest import write_params
from hub_toys import save_hub
from safetensors.torch import load_file, save_file
from toys import rewrite

from dopsd.cli.main import main
from dopsd.config import profiles
from dopsd.config.loading import checked
from dopsd.config.params_file import with_changes
from dopsd.pipeline.bases.fit import block_faults
from dopsd.pipeline.estimate.command import CpuSpeed

BD3LM = "Qwen3-0.6B-diffusion-bd3lm-v0.1"
OF_BLOCKS = ("model.block_size=32", "method.d_opsd.reveal_scope=all_masked")


@pytest.fixture
def folder(here: Path) -> Path:
    return Path("models")


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_every_kind_of_fault_of_a_weight_file_is_named(folder: Path, capsys):
    save_hub(folder, "Dream")
    for path in folder.glob("model*"):
        path.unlink()
    save_hub(folder / "whole", "Dream")
    tensors = dict(ChainMap(*map(load_file, (folder / "whole").glob("*.safetensors"))))
    names = ("input_layernorm", "self_attn.q_proj", "self_attn.k_proj")
    norm, q, k = (f"model.layers.0.{name}.weight" for name in names)
    del tensors[norm]
    tensors |= {"stranger": torch.zeros(3), q: tensors[q][:5], k: tensors[k].to(torch.int8)}
    save_file({name: t.contiguous() for name, t in tensors.items()}, folder / "model.safetensors")
    assert main(["inspect", str(folder)]) == 2
    unknown, shape, quantised, missing = said(capsys)
    assert "1 tensor unknown to config.json: stranger; take config.json and the weights" in unknown
    assert f"(first: [5, 32], config.json gives [32, 32]): {q}" in shape
    assert f"no floating-point numbers (I8): {k}; take the checkpoint that was not" in quantised
    assert f"1 tensor missing: {norm}; download it again" in missing


def test_a_template_that_cannot_be_rendered_is_refused(folder: Path, capsys):
    save_hub(folder, "sdar")
    rewrite(folder / "tokenizer_config.json", chat_template="{% for %}")
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    assert main(["inspect", str(folder)]) == 2
    (line,) = said(capsys)
    assert "the tokenizer's chat template cannot be rendered (" in line


def test_blocks_that_no_file_names_are_asked_for_whatever_the_base_is_called(folder: Path, capsys):
    base = folder / BD3LM
    save_hub(base, "a2d-qwen3")
    assert main(["inspect", str(base)]) == 0
    assert f"can be used: set model.path={base} and model.block_size=32" in capsys.readouterr().out
    assert main(["inspect", str(base), "--block-size", "4"]) == 0
    assert f"set model.path={base} and model.block_size=4" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        main(["inspect", str(base), "--block-size", "0"])
    write_params(model__path=str(base), pretrain__tasks=[])
    capsys.readouterr()
    assert main(["check"]) == 2
    assert "model.block_size=32" in said(capsys)[0]
    save_hub(folder / "mine", "sdar", block_size="absent")
    write_params(model__path=str(folder / "mine"), pretrain__tasks=[])
    assert main(["check"]) == 2
    assert "JetLM/SDAR-1.7B-Chat has model.block_size=4" in said(capsys)[0]


@pytest.mark.parametrize("change", ["value", "shape", "dtype", "precision"])
def test_a_second_copy_of_the_head_is_compared(change: str, folder: Path, capsys):
    save_hub(folder, "a2d-qwen3")
    files = [*folder.glob("*.safetensors")]
    file = next(path for path in files if "model.norm.weight" in load_file(path))
    embedding = ChainMap(*map(load_file, files))["model.embed_tokens.weight"]
    head = {
        "value": embedding + 1,
        "shape": embedding[:5].clone(),
        "dtype": embedding.to(torch.int8),
        "precision": embedding.bfloat16(),
    }[change]
    save_file(load_file(file) | {"lm_head.weight": head}, file)
    index = folder / "model.safetensors.index.json"
    raw = json.loads(index.read_text())
    raw["weight_map"]["lm_head.weight"] = file.name
    index.write_text(json.dumps(raw))
    expected = {
        "value": "lm_head.weight differs from model.embed_tokens.weight",
        "shape": "1 tensor of another shape (first: [5, 32], config.json gives [112, 32])",
        "dtype": "no floating-point numbers (I8): lm_head.weight",
    }
    assert main(["inspect", str(folder)]) == (2 if change in expected else 0)
    assert expected.get(change, "") in capsys.readouterr().err


def test_check_reads_a_base_without_torch(folder: Path):
    save_hub(folder, "sdar", block_size=8)
    write_params(
        model__path=str(folder), pretrain__tasks=[], method__d_opsd__reveal_scope="all_masked"
    )
    code = "import sys; from dopsd.cli.main import main; assert main(['check']) == 0;"
    code += " assert not {'torch', 'transformers'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_blocks_are_refused_where_there_are_none(folder: Path, capsys):
    save_hub(folder, "illada")
    write_params(model__path=str(folder), pretrain__tasks=[], model__block_size=8)
    assert main(["check"]) == 2
    assert "in illada every token sees every other; leave the key out" in said(capsys)[0]
    write_params(model__path=str(folder), pretrain__tasks=[])
    assert main(["check"]) == 0
    assert f"no errors; `dopsd inspect {folder}` looks into the base" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("profile", "name", "changes"),
    [
        ("dream-7b", "Dream", ["model.path=models/DiffuCoder-7B-Instruct"]),
        ("sdar-1.7b", "sdar", ["model.path=models/SDAR-4B-Chat"]),
        ("a2d-0.6b", "a2d-qwen3", [f"model.path=models/{BD3LM}", *OF_BLOCKS]),
    ],
)
def test_a_checkpoint_without_a_profile_takes_that_of_its_kind(
    profile: str, name: str, changes: list[str], folder: Path, request: pytest.FixtureRequest
):
    text = (Path(request.config.rootpath) / "docs/bases.md").read_text()
    words = " ".join(f"--set {change}" for change in changes)
    assert f"dopsd params --profile {profile}-gsm8k {words}\n" in text
    settings = checked(with_changes(profiles.resolve(f"{profile}-gsm8k"), changes), "--set")
    save_hub(Path(settings.model.path), name)
    assert block_faults(settings) == []


def test_a_profile_says_that_later_blocks_teach_a_base_of_blocks_nothing(folder: Path, capsys):
    for profile, size in (("sdar-1.7b", 4), ("llada2-mini", 32), ("llada-8b", 0)):
        assert main(["params", "--profile", f"{profile}-gsm8k"]) == 0
        assert any(f"of {size}: a teacher that sees" in line for line in said(capsys)) is bool(size)


def test_an_estimate_names_layers_that_a_base_has_not(folder: Path, capsys):
    targets = "train.lora.targets=[query_key_value]"
    assert main(["estimate", "--profile", "sdar-1.7b-gsm8k", "--set", targets]) == 2
    assert (
        "train.lora.targets: query_key_value: no layer of this base; there are q_proj"
        in said(capsys)[-1]
    )


def test_an_estimate_for_a_cpu_measures_it(folder: Path, capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        "dopsd.pipeline.estimate.command.cpu_speed", lambda kind: CpuSpeed(1e12, kind)
    )
    small = ["--profile", "a2d-0.6b-sudoku", "--preset", "small", "--hardware", "cpu"]
    assert main(["estimate", *small]) == 0
    shown = capsys.readouterr().out
    assert "this machine's CPU: about " in shown and " at 90% of its 1000 GFLOP/s" in shown
    assert "; 8 attempts at every problem" in shown


def test_hardware_of_other_profiles_is_not_taken_for_a_spelling_mistake(folder: Path, capsys):
    assert main(["params", "--profile", "dream-7b-gsm8k", "--hardware", "1x16gb"]) == 2
    expected = "--hardware 1x16gb: dream-7b-gsm8k has no settings for it; there is 1x80gb"
    assert expected in said(capsys)[0]
