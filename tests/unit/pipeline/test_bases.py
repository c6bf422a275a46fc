"""`dopsd models`, `inspect`, `check` and `estimate`: bases that can be used, faults of others."""

import json
import math
import subprocess
import sys
from collections import ChainMap
from pathlib import Path

import pytest
import torch
from conftest import write_params
from hub_server import Hub
from hub_toys import save_hub
from safetensors.torch import load_file, save_file
from toys import rewrite

from dopsd.cli.main import main
from dopsd.config import profiles
from dopsd.config.loading import checked
from dopsd.config.params_file import with_changes
from dopsd.core.errors import DopsdError
from dopsd.models import registry
from dopsd.models.backends import attention_of
from dopsd.models.checkpoint_files import expected_shapes
from dopsd.models.config import ModelConfig
from dopsd.models.registry import ARCHITECTURES, Published, published
from dopsd.pipeline.bases.fit import block_faults
from dopsd.pipeline.bases.inspect import inspect
from dopsd.pipeline.bases.table import list_bases
from dopsd.pipeline.estimate.command import CpuSpeed


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
    stated = registry.traits(name)
    computed = registry.computed_by(registry.config_class(name))
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


def test_check_names_what_does_not_fit_a_block_causal_base(here: Path, refusal):
    save_hub(Path("models/toy"), "sdar")
    changes = {"pretrain__tasks": [], "matrix__methods": ["d_opsd", "spg"]}
    write_params(model__path="models/toy", **changes)
    lines = refusal("check").splitlines()
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
    reveal = {"method__d_opsd__reveal_scope": "all_masked"}
    write_params(model__path=str(folder), pretrain__tasks=[], **reveal)
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
    line = "train.lora.targets: query_key_value: no layer of this base; there are q_proj"
    assert line in said(capsys)[-1]


def test_an_estimate_for_a_cpu_measures_it(folder: Path, capsys, monkeypatch: pytest.MonkeyPatch):
    speed = "dopsd.pipeline.estimate.command.cpu_speed"
    monkeypatch.setattr(speed, lambda kind: CpuSpeed(1e12, kind))
    small = ["--profile", "a2d-0.6b-sudoku", "--preset", "small", "--hardware", "cpu"]
    assert main(["estimate", *small]) == 0
    shown = capsys.readouterr().out
    assert "this machine's CPU: about " in shown and " at 90% of its 1000 GFLOP/s" in shown
    assert "; 8 attempts at every problem" in shown
