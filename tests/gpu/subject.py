"""LLaDA-8B with an adapter on the pretended device; its weights have shapes and no numbers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from random_weights import random_policy

from dopsd.config.params import Params
from dopsd.models.backends import kernels_of
from dopsd.models.llada.configuration import LladaConfig
from dopsd.models.llm_policy import LlmPolicy
from gpu.device import Device

SUPPRESSED = [*range(126336, 126340), *range(126349, 126464)]  # as LLaDA's tokenizer says


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
    config, gpu = LladaConfig(n_layers=layers), torch.device("cuda")
    config._attn_implementation = "sdpa"
    kernels = kernels_of(params.model, gpu, config)
    policy = random_policy(config, params.train.lora, gpu, torch.bfloat16, kernels)
    policy.suppress_tokens = SUPPRESSED
    return Subject(device, params, policy)
