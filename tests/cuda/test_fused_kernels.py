"""Fused kernels on a card: the operators of a CPU but for rounding."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from card import CPU, GRADIENT, LOGITS, Within, distance
from hub_toys import COMMON, HUB
from kernel_rounding import Comparison
from torch import Tensor
from toys import IDS, SHAPE

from dopsd.models.config import AdapterConfig
from dopsd.models.denoiser import Denoiser
from dopsd.models.kernels import operators
from dopsd.models.llada.configuration import LladaConfig
from dopsd.models.llada.modeling import LladaForMaskedLM
from dopsd.models.llm_policy import LlmPolicy
from dopsd.models.loading import build_model
from dopsd.models.registry import config_class
from dopsd.models.text import build_tokenizer

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not find_spec("liger_kernel"), reason="needs liger-kernel"),
]
SHAPES = {  # B, T, D, heads, heads of keys: of SmolLM2, Tiny-A2D and LLaDA-8B, and odd lengths
    "576": (2, 19, 576, 9, 3),
    "1024": (3, 1, 1024, 16, 8),
    "4096": (1, 33, 4096, 32, 32),
}
DTYPES = (torch.float32, torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", SHAPES)
def test_operators(width: str, dtype: torch.dtype, device, within: Within):
    """As shares of what rounding allows; kernel_rounding.py says how much that is."""
    from dopsd.models.kernels import fused  # noqa: F401  # registers the kernels of a card

    shares: dict[str, float] = {}
    comparison = Comparison(dtype, SHAPES[width], shares, operators, device)
    for part in (comparison.norms, comparison.rotary, comparison.swiglu):
        part()
    within(1.0, **shares)


def base(name: str) -> Denoiser:
    if name == "llada":
        shape = SHAPE | IDS | {"d_model": 576, "n_heads": 9, "mlp_hidden_size": 1536}
        return LladaForMaskedLM(LladaConfig(**shape, n_kv_heads=3))
    sizes = {"hidden_size": 576, "intermediate_size": 1536, "head_dim": 64}
    heads = {"num_attention_heads": 9, "num_key_value_heads": 3}
    return build_model(
        config_class(name.replace("-", "_")).from_dict(COMMON | HUB[name] | sizes | heads)
    )


def computed(
    name: str, device: torch.device, dtype: torch.dtype, is_fused: bool
) -> tuple[Tensor, Tensor]:
    """Logits of real tokens, and the gradients of the adapter and the norms, on the CPU."""
    torch.manual_seed(0)
    model = base(name)
    for p in model.parameters():
        p.data.normal_(std=p.shape[1] ** -0.5) if p.ndim > 1 else p.data.normal_(1.0, 0.1)
    # in float32 too the weights are those of bfloat16, so that only computing rounds
    model = model.bfloat16().to(dtype).eval().requires_grad_(False)
    if is_fused:
        model.fuse()
    lora = AdapterConfig(r=4, alpha=8, dropout=0.0, targets=["q_proj", "v_proj", "up_proj"])
    policy = LlmPolicy(model, build_tokenizer(), lora, 0)
    for name, p in policy.core.named_parameters():
        if "lora" in name:
            p.data.normal_(std=0.1)
        p.requires_grad_("lora" in name or p.ndim == 1)
    policy.core.to(device)
    ids = torch.randint(2, 100, (3, 35), generator=torch.Generator().manual_seed(1))
    keep = torch.ones_like(ids, dtype=torch.bool)
    keep[1, :16], keep[2, :-1] = False, False  # the last row is one token behind padding
    logits = policy.head(policy.hidden(ids.to(device), keep.to(device)))
    logits.float().log_softmax(-1)[keep.to(device)].square().mean().backward()
    gradients = [p.grad.flatten().float().cpu() for p in policy.trainable().values()]
    return logits.detach().float().cpu()[keep], torch.cat(gradients)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["llada", "a2d-llama", "a2d-qwen3"])
def test_a_whole_model(name: str, dtype: torch.dtype, device, within: Within):
    exact = computed(name, CPU, torch.float32, is_fused=False)
    plain, fused = (computed(name, device, dtype, is_fused) for is_fused in (False, True))
    if dtype == torch.float32:
        within(LOGITS, logits=distance(fused[0], plain[0]))
        within(GRADIENT, gradient=distance(fused[1], plain[1]))
        return
    for what, a, b, c in zip(("logits", "gradient"), fused, plain, exact, strict=True):
        within(1.5 * distance(b, c), **{what: distance(a, c)})  # no further than plain torch
