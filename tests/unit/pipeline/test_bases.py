"""`dopsd models` and `dopsd inspect`: bases that can be used, and faults by name."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import write_params
from hub_server import Hub
from hub_toys import save_hub
from toys import rewrite

from dopsd.cli.main import main
from dopsd.config import profiles
from dopsd.config.loading import checked
from dopsd.core.errors import DopsdError
from dopsd.models.backends import attention_of
from dopsd.models.checkpoint_files import expected_shapes
from dopsd.models.config import ModelConfig
from dopsd.models.registry import (
    ARCHITECTURES,
    Published,
    computed_by,
    config_class,
    published,
    traits,
)
from dopsd.pipeline.bases.fit import block_faults
from dopsd.pipeline.bases.inspect import inspect
from dopsd.pipeline.bases.table import list_bases


def test_each_architecture_names_its_checkpoints_and_their_licence(capsys):
    rows = published()
    assert {row.architecture for row in rows} == set(ARCHITECTURES.names)
    assert all(row.licence for row in rows)
    assert all(("/" in row.name) != bool(row.made_by) for row in rows)
    list_bases()
    shown = capsys.readouterr().out
    assert all(row.name in shown for row in rows)


def test_bases_are_listed_without_heavy_packages():
    heavy = "torch", "transformers", "numpy", "scipy", "peft", "mlflow"
    code = "import sys; from dopsd.cli.main import main; assert main(['models']) == 0; "
    code += f"print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert "| sdar | its block and earlier ones | its own token | exact |" in done.stdout


@pytest.mark.parametrize("name", ARCHITECTURES.names)
def test_a_file_says_of_an_architecture_what_its_class_computes(name: str):
    stated, computed = traits(name), computed_by(config_class(name))
    patterns = tuple(stated.attention_patterns)
    assert stated._replace(attention_patterns=patterns) == computed


@pytest.mark.parametrize(
    "row", [row for row in published() if row.shape is not None], ids=lambda row: row.name
)
@pytest.mark.full
def test_the_published_shape_has_the_published_number_of_parameters(row: Published):
    config = row.config()
    count = sum(math.prod(shape) for shape in expected_shapes(config).values())
    assert count == pytest.approx(row.parameters, rel=5e-3)
    if row.name.startswith(("dllm-hub/Qwen3", "TIDE")):  # its files hold the tied head once more
        count += config.embedding_size * config.d_model
    assert 2 * count / 1e9 == pytest.approx(row.gigabytes, rel=0.01)


def test_a_base_is_described_without_its_weights(tmp_path: Path, capsys):
    save_hub(tmp_path, "sdar")
    inspect(str(tmp_path))
    shown = capsys.readouterr().out
    # 2 x (32 x (64 + 32 + 32) + 64 x 32 + 3 x 32 x 48 + 2 x 16 + 2 x 32) + 2 x 112 x 32 + 32
    assert "sdar, 28,896 parameters, 2 blocks of width 32" in shown
    assert "a token sees its block of 4 and earlier ones" in shown
    assert "mask <|mdm_mask|> (1), end of text <|endoftext|> (0)" in shown
    assert f"can be used: set model.path={tmp_path}" in shown


def test_all_faults_of_a_folder_are_named_at_once(tmp_path: Path, capsys):
    save_hub(tmp_path, "Dream")
    rewrite(tmp_path / "config.json", num_hidden_layers=3, mask_token_id=50)
    with pytest.raises(DopsdError) as refused:
        inspect(str(tmp_path))
    weights, tokenizer = str(refused.value).splitlines()
    assert "12 tensors missing: model.layers.2." in weights
    assert "mask_token_id 50 of config.json must be the tokenizer's mask" in tokenizer
    assert "can be used" not in capsys.readouterr().out


def test_faults_of_a_name_on_the_hub_are_named(hub: Hub, tmp_path: Path, capsys):
    def said(name: str, status: int = 2) -> str:
        assert main(["inspect", f"someone/{name}"]) == status
        return capsys.readouterr().err

    save_hub(tmp_path, "sdar")
    rewrite(tmp_path / "config.json", num_hidden_layers=3)
    on_the_hub(hub, tmp_path)
    assert "dopsd: someone/toy: 11 tensors missing: model.layers.2." in said("toy")
    for path in tmp_path.glob("*.safetensors*"):
        path.unlink()
    on_the_hub(hub, tmp_path, **{"pytorch_model.bin": b"pickle"})
    assert "toy: only pytorch_model.bin, and pickle files are not loaded" in said("toy")
    assert "404 (Repository not found): no folder and no repository" in said("other")
    hub.failing = {"GET /api/models": 403}
    assert "it asks for consent; accept its terms on its page" in said("toy")
    hub.failing = {"GET /api/models": 503}
    assert "the hub cannot answer now" in said("toy", 75)


def test_an_adapter_is_no_base(tmp_path: Path):
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(DopsdError, match="an adapter, which is no base"):
        inspect(str(tmp_path))


def test_flash_attention_has_no_mask_of_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    save_hub(tmp_path, "sdar")
    monkeypatch.setattr("dopsd.models.backends.find_spec", lambda name: object())
    gpu = torch.device("cuda", 0)
    automatic = ModelConfig(path=str(tmp_path), attention="auto", dtype="bfloat16")
    assert attention_of(automatic, gpu) == "sdpa"
    named = automatic.model_copy(update={"attention": "flash_attention_2"})
    with pytest.raises(DopsdError, match="takes no mask of blocks"):
        attention_of(named, gpu)
    rewrite(tmp_path / "config.json", model_type="a2d-qwen3", block_size=None)
    assert attention_of(automatic, gpu) == "flash_attention_2"


def test_profiles_of_block_causal_bases_fit_them(here: Path):
    for profile, name, size in (("sdar-1.7b", "sdar", 4), ("llada2-mini", "llada2_moe", 32)):
        folder = Path(profiles.families()[profile].path)
        save_hub(folder, name, block_size="absent")  # as published files
        for preset in profiles.presets():
            settings = checked(profiles.resolve(f"{profile}-gsm8k", preset), "p")
            assert block_faults(settings) == []
        wide = settings.sampling.model_copy(update={"block_length": 2 * size})
        off = settings.model_copy(update={"sampling": wide})
        assert block_faults(off)[0].startswith("sampling: ")  # the test sees the base


def test_check_names_what_does_not_fit_a_block_causal_base(here: Path, capsys):
    save_hub(Path("models/toy"), "sdar")
    changes = {"pretrain__tasks": [], "matrix__methods": ["d_opsd", "spg"]}
    write_params(model__path="models/toy", **changes)
    assert main(["check"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    misfit = "models/toy: block_length 8: this base attends in blocks of 4; set block_length to it"
    assert f"sampling: {misfit}" in lines[0]
    assert f"evaluate.protocols.greedy: {misfit}" in lines[1]
    assert "method.d_opsd.reveal_scope: future_blocks teaches nothing with this base" in lines[2]
    rewrite(Path("models/toy/config.json"), block_size=8)
    changes |= {"method__d_opsd__reveal_scope": "all_masked"}
    write_params(model__path="models/toy", **changes)
    assert main(["check"]) == 0


def on_the_hub(hub: Hub, folder: Path, **extra: bytes) -> None:
    files = {path.name: path.read_bytes() for path in folder.iterdir()} | extra
    hub.add("someone/toy", files)


def test_a_name_on_the_hub_is_inspected_by_headers_alone(hub: Hub, tmp_path: Path, capsys):
    save_hub(tmp_path, "sdar")
    card = b"---\nlicense: apache-2.0\n---\nA toy.\n"
    on_the_hub(hub, tmp_path, **{"README.md": card, "modeling_sdar.py": b"raise SystemExit"})
    assert main(["inspect", "someone/toy"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("someone/toy:\n") and "sdar, 28,896 parameters" in shown
    assert "download: 0.000118 GB of weights" in shown and "licence: apache-2.0" in shown
    assert "can be used: hf download someone/toy --local-dir models/toy" in shown
    fetched = [line for line in hub.requests if "/resolve/" in line]
    assert not any(name in line for line in fetched for name in (".py", "README"))
    weights = [line for line in fetched if line.endswith(".safetensors")]
    assert len(weights) == len(set(weights)) == len(list(tmp_path.glob("*.safetensors")))


def test_a_published_base_with_blocks_says_where_its_training_counts_them():
    rows = {row.name: row.blocks for row in published() if "block" in row.settings}
    assert all(rows.values()) and len(rows) >= 10
    assert not any(row.blocks for row in published() if row.name not in rows)
