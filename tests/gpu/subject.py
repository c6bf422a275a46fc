"""LLaDA-8B with an adapter on the pretended device; its weights have shapes and no numbers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dopsd.config import profiles
from dopsd.config.loading import checked
from dopsd.config.params import Params
from dopsd.config.params_file import with_changes
from dopsd.models.llada.configuration import LladaConfig
from dopsd.models.llada.modeling import LladaForMaskedLM
from dopsd.models.llm_policy import LlmPolicy
from gpu.device import Device

SUPPRESSED = [*range(126336, 126340), *range(126349, 126464)]  # as LLaDA's tokenizer says


class AnyTokens:
    all_special_ids = SUPPRESSED
    added_tokens_decoder: dict[int, Any] = {}  # noqa: RUF012

    def get_vocab(self) -> dict[str, int]:
        return {}


def settings(*changes: str) -> Params:
    """Return the published settings for LLaDA-8B on one 80 GB card, with changes."""
    raw = with_changes(profiles.resolve("llada-8b-gsm8k", "paper", "1x80gb"), list(changes))
    return checked(raw, Path("profile"))


@dataclass
class Subject:
    """LLaDA-8B with an adapter on the device."""

    device: Device
    params: Params
    policy: LlmPolicy

    @property
    def layers(self) -> int:
        return self.policy.core.config.n_layers


def make(device: Device, params: Params, layers: int = 32) -> Subject:
    """Return the model with weights of no numbers."""
    config = LladaConfig(n_layers=layers)
    config._attn_implementation = "sdpa"
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LladaForMaskedLM(config)
    torch.set_default_dtype(torch.float32)
    model.eval().requires_grad_(False)
    if params.model.kernels != "torch":
        model.fuse()  # `auto` as on a GPU with liger-kernel
    policy = LlmPolicy(model, AnyTokens(), params.train.lora, 0)  # type: ignore[arg-type]
    policy.suppress_tokens = SUPPRESSED
    policy.core.to("cuda")
    return Subject(device, params, policy)
