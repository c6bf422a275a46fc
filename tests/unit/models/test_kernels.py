"""Fused kernels: on a CPU the same bits as plain torch; what they save; where they are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from toys import save_toy, toy

from dopsd.core.errors import DopsdError
from dopsd.models import loading
from dopsd.models.config import AdapterConfig, ModelConfig
from dopsd.models.kernels import operators
from dopsd.models.kernels.fused import FusedKernels
from dopsd.models.kernels.plain import Kernels, rope_tables
from dopsd.models.llada.configuration import LladaConfig
from dopsd.models.llada.modeling import LladaBlock
from dopsd.models.llm_policy import load_policy

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
IDS = torch.randint(2, 20, (2, 9), generator=torch.Generator().manual_seed(1))
KEEP = torch.tensor([[False] * 3 + [True] * 6, [True] * 9])


def computed(model: nn.Module) -> list[Tensor]:
    """Logits, then the gradients of all parameters."""
    logits = model(IDS, KEEP).logits
    logits.float().square().mean().backward()
    return [logits, *(p.grad for p in model.parameters())]


@DTYPES
@pytest.mark.parametrize("kv_heads", [4, 1])
def test_logits_and_all_gradients_are_those_of_plain_torch_to_the_bit(
    dtype: torch.dtype, kv_heads: int
):
    plain, fused = toy(kv_heads).to(dtype), toy(kv_heads).to(dtype)
    assert fused.fuse()
    assert all(torch.equal(a, b) for a, b in zip(computed(plain), computed(fused), strict=True))


def test_adapters_with_checkpointing_train_to_the_same_bits(tmp_path: Path):
    save_toy(tmp_path)
    lora, found = AdapterConfig(r=2, alpha=4, dropout=0.5, targets=["q_proj", "up_proj"]), []
    for is_fused in (False, True):
        for is_checkpointing in (False, True):
            policy = load_policy(ModelConfig(path=str(tmp_path), dtype="bfloat16"), lora, 0)
            for p in policy.trainable().values():
                nn.init.normal_(p, std=0.1, generator=torch.Generator().manual_seed(1))
            if is_fused:
                policy.core.fuse()
            if is_checkpointing:
                policy.use_gradient_checkpointing()
            policy.core.train()
            torch.manual_seed(1)
            policy.hidden(IDS, KEEP).square().mean().backward()
            found.append([p.grad for p in policy.trainable().values()])
    assert all(g.any() for g in found[0])
    assert all(
        torch.equal(*pair) for other in found[1:] for pair in zip(found[0], other, strict=True)
    )


def arguments(dtype: torch.dtype) -> dict[Callable, tuple]:
    """Each operator with arguments of odd lengths, of which autograd would give the gradients."""
    generator = torch.Generator().manual_seed(0)

    def some(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(dtype).requires_grad_()

    tables = rope_tables(5, 6, 500.0, torch.device("cpu"))
    return {
        operators.add_rms_norm: (some(2, 5, 12), some(2, 5, 12), some(12), 1e-5),
        operators.rotary: (some(2, 5, 4, 6), some(2, 5, 1, 6), *tables, False),
        operators.swiglu: (some(2, 5, 7), some(2, 5, 7)),
    }


@pytest.mark.parametrize("name", ["add_rms_norm", "rotary", "swiglu"])
def test_torchs_own_check_of_operators_passes(name: str):
    (given,) = (a for op, a in arguments(torch.float32).items() if op._name == name)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(getattr(operators, name), given, test_utils=checks)


def test_compiled_blocks_call_the_operators():
    graphs: list[str] = []

    def traced(graph: torch.fx.GraphModule, given: list[Tensor]) -> Callable[..., object]:
        graphs.append(str(graph.graph))
        return make_boxed_func(graph.forward)  # without inductor's C++

    plain, fused = toy(), toy()
    fused.fuse()
    fused.blocks()[1].compile(backend=aot_autograd(fw_compiler=traced))
    for eager, compiled in zip(computed(plain), computed(fused), strict=True):
        torch.testing.assert_close(eager, compiled, rtol=1e-4, atol=1e-5)
    for name in ("add_rms_norm_backward", "rotary", "swiglu_backward_"):
        assert name in "".join(graphs)


class Saved:
    """Bytes that a forward pass keeps for its backward pass, each storage once."""

    def __init__(self) -> None:
        self.bytes: dict[int, int] = {}

    def __call__(self, x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        self.bytes[storage.data_ptr()] = storage.nbytes()
        return x


@pytest.mark.parametrize(("is_fused", "expected"), [(False, 38), (True, 28)])
def test_a_block_saves_28_bytes_a_token_and_unit_of_width_instead_of_38(
    is_fused: bool, expected: int
):
    width, tokens = 64, 512
    config = LladaConfig(d_model=width, n_heads=2, n_kv_heads=2, mlp_hidden_size=3 * width)
    config._attn_implementation = "sdpa"
    block = LladaBlock(config, 0).bfloat16().requires_grad_(False)
    down = torch.randn(1, width, dtype=torch.bfloat16, requires_grad=True)  # an adapter's A, rank 1
    kernels = FusedKernels() if is_fused else Kernels()
    for module in (block, block.attn_norm, block.ff_norm):
        module.kernels = kernels
    for name in ("q_proj", "k_proj", "v_proj", "up_proj"):
        layer = getattr(block, name)
        layer.register_forward_hook(lambda _, given, out: out + (given[0] @ down.T))
    x = torch.randn(1, tokens, width, dtype=torch.bfloat16, requires_grad=True)
    rope = rope_tables(tokens, width // 2, 1e4, x.device)
    saved, before = Saved(), Saved()
    for p in (*block.parameters(), *rope, down):
        before(p)
    with torch.autograd.graph.saved_tensors_hooks(saved, lambda kept: kept):
        block(x, rope, None)
    kept = sum(n for at, n in saved.bytes.items() if at not in before.bytes)
    assert kept / tokens / width == pytest.approx(expected, abs=0.3)


def test_a_second_backward_pass_through_swiglu_raises_instead_of_computing_nonsense():
    gate, up = (torch.ones(3, requires_grad=True) * i for i in (1, 2))
    product = operators.swiglu(gate, up).sum()
    product.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_auto_is_torch_without_a_gpu_or_without_the_package(monkeypatch: pytest.MonkeyPatch):
    auto, gpu = ModelConfig(kernels="auto"), torch.device("cuda", 0)
    monkeypatch.setattr(loading, "find_spec", lambda name: object())
    assert loading.kernels_of(auto, torch.device("cpu")) == "torch"
    assert loading.kernels_of(auto, gpu) == "liger"
    assert loading.kernels_of(ModelConfig(), gpu) == "torch"
    monkeypatch.setattr(loading, "find_spec", lambda name: None)
    assert loading.kernels_of(auto, gpu) == "torch"


def test_results_of_plain_torch_keep_the_identity_that_they_had_before_the_setting():
    assert "kernels" not in loading.resolved(ModelConfig(kernels="torch")).decisive()
    assert ModelConfig(kernels="liger").decisive()["kernels"] == "liger"


def test_liger_on_a_cpu_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    save_toy(tmp_path)
    monkeypatch.setattr(loading, "find_spec", lambda name: object())
    model = ModelConfig(path=str(tmp_path), kernels="liger")
    with pytest.raises(DopsdError, match=r"^model\.kernels: liger needs an NVIDIA GPU") as raised:
        load_policy(model, None, 0, torch.device("cpu"))
    assert raised.value.exit_code == 2 and "\n" not in str(raised.value)


def test_an_architecture_without_fused_kernels_is_refused(monkeypatch: pytest.MonkeyPatch):
    model = toy()
    monkeypatch.setattr(type(model), "fuse", lambda self: False)
    loading.fuse(model, "torch")
    with pytest.raises(DopsdError, match="liger has no kernels for llada; set it to torch"):
        loading.fuse(model, "liger")
