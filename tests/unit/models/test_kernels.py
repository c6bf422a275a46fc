"""Fused kernels: on a CPU the same bits as plain torch; what they save; where they are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from hub_toys import NAMES, save_hub
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from toys import IDS, SHAPE, save_toy, toy
from transformers import AutoModelForMaskedLM

from dopsd.core.errors import DopsdError
from dopsd.models import backends, loading
from dopsd.models.config import AdapterConfig, ModelConfig
from dopsd.models.kernels import operators
from dopsd.models.kernels.fused import FusedKernels
from dopsd.models.kernels.operators import Kernels, rope_tables
from dopsd.models.llada.configuration import LladaConfig
from dopsd.models.llada.modeling import LladaForMaskedLM
from dopsd.models.llm_policy import LlmPolicy, load_policy
from dopsd.models.registry import folder_name, read_config, traits
from dopsd.models.text import build_tokenizer

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
TEXT = torch.randint(2, 20, (2, 9), generator=torch.Generator().manual_seed(1))
PART = slice(4, 9)
KEEP = torch.tensor([[False] * 3 + [True] * 6, [True] * 9])


def computed(model: nn.Module) -> list[Tensor]:
    """Logits, then the gradients of all parameters."""
    logits = model(TEXT, KEEP).logits
    logits.float().square().mean().backward()
    grads = [p.grad for p in model.parameters()]
    return [logits, *(g for g in grads if g is not None)]  # not every expert has a token


@DTYPES
@pytest.mark.parametrize("kv_heads", [4, 1])
def test_logits_and_all_gradients_are_those_of_plain_torch_to_the_bit(dtype, kv_heads):
    plain, fused = toy(kv_heads).to(dtype), toy(kv_heads).to(dtype)
    fused.fuse()
    assert all(torch.equal(a, b) for a, b in zip(computed(plain), computed(fused), strict=True))


def of_a_published_layout(folder: Path, kernels: str, dtype: torch.dtype) -> list[list[Tensor]]:
    """States of forwards, then logits and gradients, of a base in 16 bits computed in a dtype."""
    config = read_config(folder)
    model = AutoModelForMaskedLM.from_pretrained(folder, config=config, dtype=torch.bfloat16)
    loading.fuse(model.to(dtype), kernels)
    cache = model.new_kv_cache()
    with torch.no_grad():
        states = [model.trunk(TEXT, None, cache), model.trunk(TEXT[:, 4:], None, cache, PART)]
        states += [model.trunk(TEXT, KEEP, copied=3)] if config.block_size else []
    return [states, computed(model)]


@pytest.mark.parametrize("name", NAMES)
def test_layers_of_transformers_compute_the_same_with_fused_kernels(name, tmp_path):
    """In float32 states are equal; in bfloat16 they are no farther from them than plain torch."""
    save_hub(tmp_path, name)
    assert read_config(tmp_path).has_fused_kernels and traits(folder_name(name)).has_fused_kernels
    exact = of_a_published_layout(tmp_path, "torch", torch.float32)
    states, grads = of_a_published_layout(tmp_path, "liger", torch.float32)
    assert all(torch.equal(*pair) for pair in zip(exact[0], states, strict=True))
    for a, b in zip(exact[1], grads, strict=True):  # weights of heads' norms sum in parts
        assert (a - b).norm() <= 1e-6 * a.norm()
    errors = []
    for kernels in ("torch", "liger"):
        found = of_a_published_layout(tmp_path, kernels, torch.bfloat16)
        pairs = [
            pair for side in zip(exact, found, strict=True) for pair in zip(*side, strict=True)
        ]
        errors.append(sum((a - b.float()).norm() / a.norm() for a, b in pairs).item())
    assert 0 < errors[1] <= 1.1 * errors[0]


@pytest.mark.parametrize("name", ["llada", *NAMES])
def test_adapters_with_dropout_and_checkpointing_train_to_the_same_bits(
    name, tmp_path, monkeypatch
):
    save_toy(tmp_path) if name == "llada" else save_hub(tmp_path, name)
    targets = ["q_proj", "v_proj" if "moe" in name else "up_proj"]
    lora, found = AdapterConfig(r=2, alpha=4, dropout=0.5, targets=targets), []
    dtype = "bfloat16" if name == "llada" else "float32"
    for is_fused in (False, True):
        for is_checkpointing in (False, True):
            kernels = "liger" if is_fused else "torch"
            monkeypatch.setattr(loading, "kernels_of", lambda *_, k=kernels: k)
            policy = load_policy(ModelConfig(path=str(tmp_path), dtype=dtype), lora, 0)
            assert policy.core.is_fused == is_fused
            for p in policy.trainable().values():
                nn.init.normal_(p, std=0.1, generator=torch.Generator().manual_seed(1))
            if is_checkpointing:
                policy.use_gradient_checkpointing()
            policy.core.train()
            torch.manual_seed(1)
            policy.hidden(TEXT, KEEP).square().mean().backward()
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


@pytest.mark.parametrize("output", [0, 1])
def test_a_sum_and_its_norm_have_gradients_when_only_one_of_them_is_used(output: int):
    found = []
    for kernels in (Kernels(), FusedKernels()):
        torch.manual_seed(0)
        x, residual, weight = (torch.randn(4, requires_grad=True) for _ in range(3))
        kernels.add_norm(x, residual, weight, 1e-5)[output].square().sum().backward()
        found.append([p.grad for p in (x, residual, weight)])
    assert found[0][0].any()
    for plain, fused in zip(*found, strict=True):
        assert (plain is None and fused is None) or torch.equal(plain, fused)


def test_sums_under_autocast_are_wide_as_those_of_plain_torch(monkeypatch):
    """The kernels of a card return the dtype of their first argument."""
    given = torch.full((4,), 60000.0).half(), torch.full((4,), 60000.0).bfloat16()
    as_on_a_card = lambda x, *rest: [y.to(x.dtype) for y in operators.add_rms_norm(x, *rest)]  # noqa: E731
    monkeypatch.setattr("dopsd.models.kernels.fused.add_rms_norm", as_on_a_card)
    weight = torch.ones(4).bfloat16()
    plain, fused = (k.add_norm(*given, weight, 1e-5) for k in (Kernels(), FusedKernels()))
    for a, b in zip(plain, fused, strict=True):
        assert a.dtype == b.dtype and torch.equal(a, b) and b.isfinite().all()


@pytest.mark.full
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


class Alive(TorchDispatchMode):
    """Bytes of the storages that operators returned and that are still referred to, each once."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.storages: dict[StorageWeakRef, int] = {}
        self.weights = {StorageWeakRef(p.untyped_storage()) for p in model.parameters()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if isinstance(x, Tensor):
                storage = x.untyped_storage()
                self.storages[StorageWeakRef(storage)] = storage.nbytes()
        return out

    @property
    def bytes(self) -> int:
        made = self.storages.keys() - self.weights
        return sum(self.storages[storage] for storage in made if not storage.expired())


@pytest.mark.parametrize(
    ("is_fused", "dropout", "expected"),
    [(False, 0.0, 38), (True, 0.0, 28), (True, 0.1, 28)],
)
def test_a_block_keeps_28_bytes_a_token_and_unit_of_width_for_its_backward_pass(
    is_fused: bool, dropout: float, expected: int
):
    kept, width, tokens = [], 64, 256
    for layers in (1, 2):
        shape = SHAPE | IDS | {"d_model": width, "mlp_hidden_size": 3 * width, "n_layers": layers}
        model = LladaForMaskedLM(LladaConfig(**shape, n_kv_heads=4))
        model.bfloat16().requires_grad_(False)
        if is_fused:
            model.fuse()
        policy = LlmPolicy(model, build_tokenizer(), AdapterConfig(r=1, dropout=dropout), 0)
        policy.core.train(dropout > 0)
        with Alive(model) as alive:
            hidden = policy.core.trunk(torch.ones(1, tokens, dtype=torch.long))
        kept.append(alive.bytes)
        assert hidden.requires_grad
    of_a_layer = (kept[1] - kept[0]) / tokens / width
    assert of_a_layer == pytest.approx(expected, abs=0.6)  # rank 1, scales of norms and attention


def test_a_second_backward_pass_through_swiglu_raises_instead_of_computing_nonsense():
    gate, up = (torch.ones(3, requires_grad=True) * i for i in (1, 2))
    product = operators.swiglu(gate, up).sum()
    product.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_auto_is_torch_where_fused_kernels_cannot_run(tmp_path, monkeypatch):
    auto, gpu = ModelConfig(kernels="auto"), torch.device("cuda", 0)
    monkeypatch.setattr(backends, "find_spec", lambda name: object())
    assert backends.kernels_of(auto, torch.device("cpu")) == "torch"
    assert backends.kernels_of(auto, gpu, LladaConfig()) == "liger"
    assert backends.kernels_of(auto, gpu, LladaConfig(d_model=1024, n_heads=8)) == "torch"
    assert backends.kernels_of(ModelConfig(), gpu) == "torch"
    monkeypatch.setattr(LladaConfig, "has_fused_kernels", False)
    save_toy(tmp_path)
    without = ModelConfig(kernels="auto", path=str(tmp_path))
    assert backends.kernels_of(without, gpu) == "torch"  # as its config.json says
    monkeypatch.setattr(backends, "find_spec", lambda name: None)
    assert backends.kernels_of(auto, gpu) == "torch"


def test_an_architecture_without_fused_kernels_is_refused(monkeypatch: pytest.MonkeyPatch):
    model = toy()
    monkeypatch.setattr(LladaConfig, "has_fused_kernels", False)
    loading.fuse(model, "torch")
    with pytest.raises(DopsdError, match="liger has no kernels for llada; set it to torch"):
        loading.fuse(model, "liger")
