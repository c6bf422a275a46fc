"""LoRA adapters: what they touch, the settings in their files, and their sum with the weights."""

from __future__ import annotations

import json
import shutil
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from conftest import small_yaml
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import Linear as PeftLinear
from safetensors.torch import load_file, save_file
from torch import Tensor
from toys import save_toy, toy
from transformers import AutoModelForMaskedLM, AutoTokenizer

from dopsd.cli.main import main
from dopsd.core.errors import DopsdError
from dopsd.models.adapter_files import ADAPTER, COMPUTED, HARMLESS, lora_of
from dopsd.models.config import AdapterConfig, ModelConfig
from dopsd.models.llm_policy import LlmPolicy, load_policy
from dopsd.models.lora import (
    LowRankLinear,
    adapter_tensors,
    attach,
    block_modules,
    load_adapter,
    save_config,
)
from dopsd.pipeline.checkpoints.export import export

LORA = AdapterConfig(r=2, alpha=4, dropout=0.0, targets=["ff_out", "q_proj"])
IDS = torch.randint(2, 20, (2, 9), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def base(tmp_path: Path) -> Path:
    save_toy(tmp_path / "base/sudoku")
    return tmp_path / "base/sudoku"


def trained(base: Path, size: float = 0.1, dtype="float32", lora=LORA) -> LlmPolicy:
    """A policy whose adapter's B is not zero."""
    policy = load_policy(ModelConfig(path=str(base), dtype=dtype), lora, 0)
    for i, p in enumerate(policy.trainable().values()):
        torch.nn.init.normal_(p, std=size, generator=torch.Generator().manual_seed(i))
    return policy


def saved(policy: LlmPolicy, folder: Path) -> Path:
    folder.mkdir()
    save_config(policy.adapted, folder)
    save_file(adapter_tensors(policy.adapted), folder / ADAPTER)
    return folder


@torch.no_grad()
def logits(policy: LlmPolicy) -> Tensor:
    return policy.head(policy.hidden(IDS, None))


def test_lora_adapts_blocks_and_never_the_head(base: Path):
    policy = load_policy(ModelConfig(path=str(base)), LORA, 0)
    names = adapter_tensors(policy.adapted)
    assert len(names) == 2 * 2 * 2 and all(".blocks." in name for name in names)
    projections = ["k_proj", "q_proj", "up_proj", "v_proj"]
    assert block_modules(toy()) == ["attn_out", "ff_out", "ff_proj", *projections]
    with pytest.raises(DopsdError, match="1 tensors do not fit this base"):
        load_adapter(policy.adapted, dict(list(names.items())[1:]))


def test_adapters_start_as_the_base_and_differ_by_seed_only_in_a(base: Path):
    first, second = (
        adapter_tensors(load_policy(ModelConfig(path=str(base)), LORA, seed).adapted)
        for seed in (0, 1)
    )
    assert all(not t.any() for name, t in first.items() if "lora_B" in name)
    assert all(not torch.equal(t, second[name]) for name, t in first.items() if "lora_A" in name)


def adapted(own: bool, dtype: torch.dtype, dropout: float = 0.0) -> torch.nn.Module:
    """One layer 48 -> 32 with its adapter (r 4, alpha 8): ours, or peft's."""
    torch.manual_seed(0)
    config = LoraConfig(r=4, lora_alpha=8, lora_dropout=dropout)
    kind, base = LowRankLinear if own else PeftLinear, torch.nn.Linear(48, 32, bias=False)
    layer = kind(base.requires_grad_(False).to(dtype), "default", config=config, r=4, lora_alpha=8)
    for part in (layer.lora_A, layer.lora_B):
        part.float()
    torch.nn.init.normal_(layer.lora_B["default"].weight, std=0.1)
    return layer


def test_an_adapted_layer_is_pefts_with_its_gradients():
    x, weight = torch.randn(3, 7, 48), torch.randn(3, 7, 32)
    found = []
    for own in (True, False):
        layer, given = adapted(own, torch.float32, dropout=0.5), x.clone().requires_grad_()
        torch.manual_seed(5)  # of the dropout
        out = layer(given)
        (out * weight).sum().backward()
        grads = [p.grad for p in layer.parameters() if p.requires_grad]
        assert len(grads) == 2
        with torch.no_grad():
            found.append([out, given.grad, *grads, layer.eval()(x)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("size", [2**-3, 2**-7, 2**-11])
def test_in_bfloat16_it_rounds_away_no_more_of_a_change_than_peft(size: float):
    x = torch.randn(2048, 48, generator=torch.Generator().manual_seed(2)).bfloat16()

    def error_and_share(own: bool) -> tuple[float, float]:
        """Distance from the exact sum, and how much of the adapter's change is in the outputs."""
        layer = adapted(own, torch.bfloat16)
        up, down = layer.lora_B["default"].weight, layer.lora_A["default"].weight
        base = layer.base_layer.weight
        up *= size * base.abs().max() / (2 * up @ down).abs().max()
        out, change = layer(x).float(), x.float() @ (2 * up @ down).T
        told = ((out - (x @ base.T).float()) * change).sum() / change.square().sum()
        return float((out - x.float() @ base.float().T - change).norm()), float(told)

    (error, share), (theirs, their_share) = error_and_share(True), error_and_share(False)
    assert error < 1.01 * theirs and abs(share - their_share) < 0.01


def test_in_bfloat16_gradients_of_an_adapter_are_those_of_float32_but_for_rounding():
    x, weight = torch.randn(64, 48).bfloat16(), torch.randn(64, 32).bfloat16()
    found = []
    for dtype in (torch.bfloat16, torch.float32):
        layer, given = adapted(True, dtype), x.to(dtype).requires_grad_()
        (layer(given) * weight.to(dtype)).sum().backward()
        found.append([p.grad for p in layer.parameters() if p.requires_grad])
        assert all(grad.dtype == torch.float32 for grad in found[-1])
    for tmp, exact in zip(*found, strict=True):
        assert 0 < (tmp - exact).norm() < 1e-2 * exact.norm()


def test_lora_settings_are_read_back_from_a_checkpoint(base: Path, tmp_path: Path):
    settings = AdapterConfig(r=3, alpha=7, dropout=0.25, targets=["ff_out", "k_proj", "q_proj"])
    folder = saved(trained(base, lora=settings), tmp_path / "adapter")
    assert lora_of(folder) == settings
    change(folder, target_modules=["q_proj", "up_proj"])  # as other tools write it
    assert lora_of(folder).targets == ["q_proj", "up_proj"]


def change(folder: Path, **changes: object) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"peft_type": "IA3"}, "IA3 is set"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights 'pissa_niter_4' is set"),
        (
            {"init_lora_weights": "olora", "bias": "all"},
            "bias 'all', init_lora_weights 'olora' is set",
        ),
        ({"field_of_tomorrow": {"a": 1}}, "field_of_tomorrow .* is set"),
        ({"r": 0}, "has r 0"),
        ({"target_modules": ".*"}, "has targets"),
        ({"target_modules": "all-linear"}, "has targets"),
    ],
)
def test_odd_lora_settings_are_refused(base: Path, tmp_path: Path, changes: dict, said: str):
    folder = saved(trained(base), tmp_path / "adapter")
    change(folder, **changes)
    with pytest.raises(DopsdError, match=said) as raised:
        lora_of(folder)
    assert "\n" not in str(raised.value) and "adapter_config.json" in str(raised.value)


def test_every_field_of_pefts_settings_is_computed_harmless_or_refused(base, tmp_path, capsys):
    names = {field.name for field in fields(LoraConfig)}
    assert {"use_dora", "rank_pattern", "modules_to_save"} <= names
    folder = saved(trained(base), tmp_path / "adapter")
    before = (folder / "adapter_config.json").read_text()
    for name in names - {*COMPUTED, *HARMLESS}:
        change(folder, **{name: ["x"]})
        with pytest.raises(DopsdError, match=f"{name} .*is set"):
            lora_of(folder)
        (folder / "adapter_config.json").write_text(before)
    plain = {"init_lora_weights": "gaussian", "field_of_tomorrow": None, "qalora_group_size": 8}
    change(folder, **plain, base_model_name_or_path="me/other")
    assert lora_of(folder) == LORA and lora_of(folder) == LORA
    assert capsys.readouterr().err.count("trained on me/other") == 1


def test_an_adapter_that_changed_its_base_is_refused_by_every_command(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    model = toy()
    pissa = LoraConfig(r=2, target_modules=r".*\.blocks\.\d+\.(q_proj)", init_lora_weights="pissa")
    get_peft_model(model, pissa).save_pretrained(str(tmp_path / "adapter"))
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text(small_yaml())
    for words in (["export", "--merged", "--out", "out"], ["sample", "--task", "sudoku"]):
        assert main([*words, "--adapter", "adapter"]) == 2
        assert "init_lora_weights 'pissa' is set; only plain" in capsys.readouterr().err
    assert not Path("out").exists()


def test_missing_or_broken_lora_settings_are_refused(tmp_path: Path):
    with pytest.raises(DopsdError, match=r"no adapter_config\.json"):
        lora_of(tmp_path)
    for text, said in (("{", "not valid JSON"), ("[]", "a JSON object"), ("{}", "lacks 'r'")):
        (tmp_path / "adapter_config.json").write_text(text)
        with pytest.raises(DopsdError, match=said):
            lora_of(tmp_path)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_merged_adapters_compute_as_adapted_and_leave_no_trace(base: Path, dtype: str):
    policy = trained(base, dtype=dtype)
    before = {name: p.clone() for name, p in policy.core.named_parameters()}
    adapted = logits(policy)
    with policy.merged():
        gap = (logits(policy) - adapted).norm() / adapted.norm()
        with pytest.raises(DopsdError, match="initial policy"), policy.reference():
            pass
    assert 0 < gap < (1e-5 if dtype == "float32" else 2e-2)
    assert all(torch.equal(p, before[name]) for name, p in policy.core.named_parameters())
    assert torch.equal(logits(policy), adapted)
    with policy.reference():
        assert not torch.allclose(logits(policy), adapted, atol=0.1)


def test_weights_come_back_after_an_error_too(base: Path):
    policy = trained(base)
    adapted = logits(policy)
    with pytest.raises(RuntimeError, match="within"), policy.merged():
        raise RuntimeError("within")
    assert torch.equal(logits(policy), adapted)


def test_merged_bfloat16_weights_are_the_rounded_sums(base: Path):
    policy = trained(base, size=0.01, dtype="bfloat16")
    layer = policy.core.model.transformer["blocks"][0].q_proj
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    expected = (layer.base_layer.weight.float() + 2 * b.float() @ a.float()).bfloat16()
    with policy.merged():
        assert torch.equal(layer.base_layer.weight, expected)


def test_a_float32_export_is_the_adapted_model_for_plain_transformers(base: Path, tmp_path: Path):
    policy = trained(base)
    adapter, out = saved(policy, tmp_path / "adapter"), tmp_path / "deep" / "out"
    found = export(ModelConfig(path=str(base)), adapter, out, "float32", is_merged=True)
    assert found.lost < 1e-5
    plain = AutoModelForMaskedLM.from_pretrained(out).eval()
    with torch.no_grad():
        assert (plain(IDS).logits - logits(policy)).abs().max() < 1e-5
    assert set(plain.state_dict()) == set(toy().state_dict())
    assert AutoTokenizer.from_pretrained(out).mask_token_id == 1
    ours = load_policy(ModelConfig(path=str(out)), None, 0)
    assert torch.equal(logits(ours), plain(IDS).logits)


def test_a_bfloat16_export_says_what_rounding_costs(base, tmp_path, capsys):
    policy = trained(base, size=0.02)
    adapter, out = saved(policy, tmp_path / "adapter"), tmp_path / "out"
    found = export(ModelConfig(path=str(base)), adapter, out, "bfloat16", is_merged=True)
    old = toy().state_dict()
    new = AutoModelForMaskedLM.from_pretrained(out).state_dict()
    tensors = load_file(adapter / ADAPTER)
    lost, changed, unmoved, count = 0.0, 0.0, 0, 0
    for name, a in tensors.items():
        if "lora_A" in name:
            key = name.removeprefix("base_model.model.").replace("lora_A.", "")
            delta = 2 * tensors[name.replace("lora_A", "lora_B")].double() @ a.double()
            lost += ((new[key].double() - old[key].double() - delta) ** 2).sum()
            changed += (delta**2).sum()
            unmoved += int((new[key] == old[key].bfloat16()).sum())
            count += delta.numel()
    assert count == 2 * (32 * 32 + 32 * 48) and all(t.dtype == torch.bfloat16 for t in new.values())
    assert found.lost == pytest.approx(float((lost / changed) ** 0.5), rel=1e-4)
    assert found.lost > 0.1
    assert found.unmoved == unmoved / count and 0 < found.unmoved < 1
    said = capsys.readouterr().err
    assert f"{found.lost:.3%} of the adapter's change" in said
    assert f"{found.unmoved:.1%} of the trained weights" in said


def test_an_export_never_writes_over_a_folder_nor_leaves_half_of_one(base: Path, tmp_path: Path):
    adapter, out = saved(trained(base), tmp_path / "adapter"), tmp_path / "out"
    out.mkdir()
    with pytest.raises(DopsdError, match="already exists"):
        export(ModelConfig(path=str(base)), adapter, out, "float32", is_merged=True)
    out.rmdir()
    (base / "tokenizer.json").unlink()
    with pytest.raises(DopsdError):
        export(ModelConfig(path=str(base)), adapter, out, "float32", is_merged=True)
    assert not list(tmp_path.glob("*out*"))


def test_the_export_command(base, tmp_path, monkeypatch, capsys):
    adapter = saved(trained(base), tmp_path / "adapter")
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text(small_yaml())
    assert main(["export", "--adapter", str(adapter), "--out", "out"]) == 2
    assert "needs --merged" in capsys.readouterr().err
    words = ["export", "--merged", "--adapter", str(adapter)]
    assert main([*words, "--out", "out"]) == 0  # model.path is base/sudoku
    shutil.move(base, tmp_path / "elsewhere")
    assert main([*words, "--model", "elsewhere", "--out", "again"]) == 0
    first, again = ({p.name: p.read_bytes() for p in Path(f).iterdir()} for f in ("out", "again"))
    assert first == again


def test_a_fresh_adapter_leaves_the_generators_of_all_gpus_alone(monkeypatch):
    touched: list[object] = []
    model = toy()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: False)
    for name in ("get_rng_state", "set_rng_state", "manual_seed_all"):
        monkeypatch.setattr(torch.cuda, name, lambda *given: touched.append(given))
    before = torch.get_rng_state()
    attach(model, LORA, 0)
    assert not touched and torch.equal(torch.get_rng_state(), before)
