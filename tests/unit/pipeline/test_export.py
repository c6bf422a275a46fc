"""A merged export, written shard by shard, is the model that transformers would write whole."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from toys import IDS, SHAPE, toy
from transformers import AutoModelForMaskedLM

from dopsd.core.errors import DopsdError
from dopsd.models.adapter_files import ADAPTER, read_adapter
from dopsd.models.config import AdapterConfig, ModelConfig
from dopsd.models.llada import LladaConfig, LladaForMaskedLM
from dopsd.models.llm_policy import load_policy
from dopsd.models.lora import adapter_tensors, load_adapter, save_config
from dopsd.models.memory import held, is_measurable, peak
from dopsd.models.merged_files import Rounding, adapted_layers
from dopsd.models.text import build_tokenizer
from dopsd.pipeline.checkpoints import export

LORA = AdapterConfig(r=2, alpha=4, dropout=0.0, targets=["ff_out", "q_proj"])
CPU = torch.device("cpu")


def saved(folder: Path, model: LladaForMaskedLM, shard: str = "16KB") -> Path:
    """A base in several files, with an adapter that is not zero beside it."""
    model.save_pretrained(folder / "base", max_shard_size=shard)
    build_tokenizer().save_pretrained(folder / "base")
    policy = load_policy(ModelConfig(path=str(folder / "base")), LORA, 0)
    for i, p in enumerate(policy.trainable().values()):
        torch.nn.init.normal_(p, std=0.02, generator=torch.Generator().manual_seed(i))
    (folder / "adapter").mkdir()
    save_config(policy.adapted, folder / "adapter")
    save_file(adapter_tensors(policy.adapted), folder / "adapter" / ADAPTER)
    return folder


def merged(folder: Path, dtype: str) -> Rounding:
    return export.write_merged(
        ModelConfig(path=str(folder / "base")), folder / "adapter", folder / "out", dtype
    )


def write_from_memory(folder: Path, dtype: torch.dtype, shard: str) -> Path:
    """Merge the whole model in memory, and let transformers write it."""
    policy = load_policy(ModelConfig(path=str(folder / "base")), LORA, 0)
    load_adapter(policy.adapted, read_adapter(folder / "adapter"))
    for layer, change in adapted_layers(policy.adapted):
        layer.weight.data = layer.weight.data + change
    policy.adapted.unload().to(dtype).save_pretrained(folder / "whole", max_shard_size=shard)
    policy.tokenizer.save_pretrained(folder / "whole")
    return folder / "whole"


@pytest.mark.parametrize("shard", ["10KB", "5GB"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_tied", [False, True])
def test_every_file_is_that_of_the_model_merged_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_tied: bool, dtype: torch.dtype, shard: str
):
    folder = saved(tmp_path, toy(is_tied=is_tied).to(torch.bfloat16))
    monkeypatch.setattr(export, "SHARD", shard)
    merged(folder, str(dtype).removeprefix("torch."))
    expected = {p.name: p.read_bytes() for p in write_from_memory(folder, dtype, shard).iterdir()}
    assert {p.name: p.read_bytes() for p in (folder / "out").iterdir()} == expected
    assert len(list((folder / "out").glob("*.safetensors"))) > 4 or shard == "5GB"


def test_of_weights_that_an_architecture_ties_by_name_one_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = saved(tmp_path, toy())
    head, embedding = (f"model.transformer.{name}.weight" for name in ("ff_out", "wte"))
    monkeypatch.setattr(LladaForMaskedLM, "_tied_weights_keys", {head: embedding})
    tied = lambda *_, **__: {head: embedding}  # noqa: E731  # whatever the config says
    monkeypatch.setattr(LladaForMaskedLM, "get_expanded_tied_weights_keys", tied)
    merged(folder, "float32")
    names = load_file(folder / "out" / "model.safetensors").keys()
    assert embedding in names and head not in names


@pytest.mark.full
def test_memory_holds_a_shard_and_not_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    if not is_measurable(CPU):
        pytest.skip("the peak of this process cannot be measured here")
    shape = SHAPE | {"d_model": 256, "mlp_hidden_size": 1024, "n_layers": 24}
    model = LladaForMaskedLM(LladaConfig(**shape, **IDS, n_kv_heads=4))
    monkeypatch.setattr(export, "SHARD", "4MB")
    merged(saved(tmp_path / "first", toy()), "float32")  # imports and buffers that stay
    folder = saved(tmp_path, model, "50MB")
    del model
    before = held(CPU)
    assert peak(CPU, lambda: merged(folder, "float32")) - before < 60e6  # of 102 MB


def test_a_disk_without_room_is_named_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = saved(tmp_path, toy())
    size = sum(p.numel() for p in toy().parameters()) * 2
    disk = SimpleNamespace(free=size - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: disk)
    monkeypatch.setattr("dopsd.models.checkpoint_files.save_tensors", pytest.fail)
    with pytest.raises(DopsdError, match=r"needs 0\.0 GB.*Free some space"):
        merged(folder, "bfloat16")
    assert {p.name for p in folder.iterdir()} == {"base", "adapter"}
    monkeypatch.undo()
    disk.free = size
    merged(folder, "bfloat16")
    assert AutoModelForMaskedLM.from_pretrained(folder / "out").dtype == torch.bfloat16


def test_a_base_that_is_not_finite_leaves_no_files(tmp_path: Path):
    folder = saved(tmp_path, toy())
    file = sorted((folder / "base").glob("*.safetensors"))[-1]
    tensors = load_file(file)
    next(iter(tensors.values())).view(-1)[0] = torch.nan
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(DopsdError, match="1 tensor not finite"):
        merged(folder, "float32")
    assert {p.name for p in folder.iterdir()} == {"base", "adapter"}
