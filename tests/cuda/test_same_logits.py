"""Logits and gradients of every architecture: a card's are those of float64 on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from card import CPU, GRADIENT, LOGITS, LOSS, Within, distance
from hub_toys import save_hub
from torch import Tensor
from toys import save_toy

from dopsd.models.config import AdapterConfig, ModelConfig
from dopsd.models.llm_policy import LlmPolicy, load_policy
from dopsd.models.registry import ARCHITECTURES

pytestmark = pytest.mark.cuda
HUB_NAMES = {"dream": "Dream"} | {f"a2d_{n}": f"a2d-{n}" for n in ("llama", "qwen2", "qwen3")}
IN_BLOCKS = {"sdar": 4, "llada2_moe": 4}
KINDS = [(name, IN_BLOCKS.get(name)) for name in ARCHITECTURES.names] + [("a2d_qwen3", 4)]
LENGTH = 17  # neither a multiple of a block nor of a kernel's tile
TARGETS = {"llada2_moe": ["query_key_value", "dense"]}
kinds = pytest.mark.parametrize(("name", "block"), KINDS)


def policies(
    folder: Path, kind: tuple[str, int | None], device: torch.device, dtype: str = "float32"
) -> tuple[LlmPolicy, LlmPolicy]:
    """The same weights and adapter twice: in float64 on the CPU, and in dtype on the device."""
    name, block = kind
    if not folder.joinpath("config.json").exists():
        save_toy(folder) if name == "llada" else save_hub(folder, HUB_NAMES.get(name, name))
    model, made = ModelConfig(path=str(folder), dtype=dtype, block_size=block), []
    targets = TARGETS.get(name, ["q_proj", "k_proj", "v_proj"])
    for place in (CPU, device):
        lora = AdapterConfig(r=2, alpha=4, dropout=0.0, targets=targets)
        policy = load_policy(model, lora, 0, place)
        draw = torch.Generator().manual_seed(3)
        for p in policy.trainable().values():
            p.data = (0.1 * torch.randn(p.shape, generator=draw)).to(p)
        made.append(policy)
    made[0].core.double()
    return made[0], made[1]


def texts() -> tuple[Tensor, Tensor]:
    """Three texts: whole, padded, and a single token behind padding."""
    ids = torch.randint(2, 100, (3, LENGTH), generator=torch.Generator().manual_seed(1))
    keep = torch.ones(3, LENGTH, dtype=torch.bool)
    keep[1, :5] = False
    keep[2, :-1] = False
    return ids, keep


def logits(policy: LlmPolicy, ids: Tensor, keep: Tensor | None) -> Tensor:
    """The logits of all tokens that predict and are no padding, [N, V], on the CPU."""
    place = policy.device
    states = policy.hidden(ids.to(place), None if keep is None else keep.to(place))
    if keep is None:
        return policy.head(states).flatten(0, 1).cpu()
    real = keep & keep.roll(1, 1) if policy.output_shift else keep
    return policy.head(states).cpu()[real]


def gradient(weight: Tensor) -> Tensor:
    """The gradient as one row; of an expert that no token chose it is 0."""
    found = torch.zeros_like(weight) if weight.grad is None else weight.grad
    return found.flatten()


@kinds
def test_logits_at_all_lengths_and_paddings(name, block, device, within: Within, tmp_path: Path):
    exact, policy = policies(tmp_path, (name, block), device)
    ids, keep = texts()
    cases = {"even": (ids, None), "one_token": (ids[:, -1:], None)}
    cases["one_block_and_a_token"] = (ids[:, -5:], None)
    cases |= {"padded": (ids, keep), "padded_alone": (ids[1:2], keep[1:2])}
    if not policy.output_shift:  # else nothing predicts the only token
        cases["one_token_and_padding"] = (ids[2:], keep[2:])
    with torch.no_grad():
        found = {
            case: distance(logits(policy, *text), logits(exact, *text))
            for case, text in cases.items()
        }
    within(LOGITS, **found)


@kinds
def test_gradients_of_the_adapter_and_of_all_weights(name, block, device, within, tmp_path):
    exact, policy = policies(tmp_path, (name, block), device)
    gradients, losses = [], []
    for each in (policy, exact):
        each.core.requires_grad_(True)
        loss = logits(each, *texts()).log_softmax(-1)[:, ::3].square().mean()
        loss.backward()
        losses.append(loss.item())
        weights = dict(each.core.named_parameters())
        parts = [n for n in weights if "lora_" in n], [n for n in weights if "lora_" not in n]
        gradients.append([torch.cat([gradient(weights[n]) for n in part]) for part in parts])
    adapter, weights = (distance(*pair) for pair in zip(*gradients, strict=True))
    within(LOSS, loss=abs(losses[0] / losses[1] - 1))
    within(GRADIENT, adapter=adapter, weights=weights)


@kinds
def test_logits_in_bfloat16_round_as_on_the_cpu(name, block, device, within, tmp_path):
    """The median over tokens: an expert that is nearly chosen may change a token's logits."""
    exact, policy = policies(tmp_path, (name, block), device, "bfloat16")
    _, on_cpu = policies(tmp_path, (name, block), CPU, "bfloat16")
    with torch.no_grad():
        expected, ours, theirs = (logits(p, *texts()) for p in (exact, policy, on_cpu))
    errors = [
        ((x.double() - expected).norm(dim=-1) / expected.norm(dim=-1)).median().item()
        for x in (ours, theirs)
    ]
    within(2 * errors[1], median_error=errors[0])


@kinds
def test_windows_of_a_cache_and_a_masked_copy(name, block, device, within: Within, tmp_path: Path):
    exact, policy = policies(tmp_path, (name, block), device)
    ids, keep = (x[:2].to(device) for x in texts())  # the third row has nothing before the window
    real, found = keep.cpu(), {}
    kv_cache, window = policy.new_kv_cache(), slice(9, 13)
    config, own = policy.core.config, policy.block_alignment
    config.block_alignment = "completion"  # windows of both rows end with blocks
    with torch.no_grad():
        whole = policy.hidden(ids, keep)
        parts = slice(0, 9), window, slice(13, 17)
        if block is None:
            policy.hidden(ids, keep, kv_cache)
            again = policy.hidden(ids[:, window], keep, kv_cache, window)
            found["window"] = distance(again, whole[:, window])
        else:
            grown = [policy.hidden(ids[:, w], keep[:, : w.stop], kv_cache, w) for w in parts]
            found["window"] = distance(torch.cat(grown, 1).cpu()[real], whole.cpu()[real])
        config.block_alignment = own
        clean = ids[:, -8:]
        masked = torch.cat([ids[:, :-8], torch.full_like(clean, policy.mask_id)], 1)
        copies = [
            p.masked_hidden(masked.to(p.device), keep.to(p.device), clean.to(p.device))
            for p in (policy, exact)
        ]
        found["masked_copy"] = distance(*copies)
    within(LOGITS, **found)
