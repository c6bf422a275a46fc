"""Policies with an adapter and random weights of a real shape, made on the device.

Nothing is downloaded. Random weights solve nothing, but take the time and memory of real ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dopsd.algorithms.common.base import AlgorithmContext
from dopsd.algorithms.d_opsd.algorithm import build
from dopsd.algorithms.d_opsd.states import states_by_update
from dopsd.config import profiles
from dopsd.config.loading import checked
from dopsd.config.params_file import with_changes
from dopsd.models.llm_policy import LlmPolicy
from dopsd.models.loading import build_model, fuse
from dopsd.models.registry import config_class, folder_name

if TYPE_CHECKING:
    from dopsd.algorithms.common.batch import States
    from dopsd.algorithms.d_opsd.algorithm import DOpsd
    from dopsd.config.params import Params
    from dopsd.core.types import Rollout
    from dopsd.models.config import AdapterConfig
    from dopsd.models.denoiser import DenoiserConfig

PROMPT = 200  # tokens


class AnyTokens:
    """A tokenizer with one word for each id, for random weights; mask and end are special."""

    added_tokens_decoder: dict[int, Any] = {}  # noqa: RUF012

    def __init__(self, config: DenoiserConfig) -> None:
        self.all_special_ids = [config.mask_token_id, config.eos_token_id]
        self.pad_token_id = self.eos_token_id = config.eos_token_id
        self.mask_token_id = config.mask_token_id
        self.words = {str(i): i for i in range(config.embedding_size)}

    def get_vocab(self) -> dict[str, int]:
        """Return the ids by word."""
        return self.words


class NoTask:
    """Stands in for a task: random weights solve nothing, and a trajectory trains as it is."""

    name, graded, scoring, instructions = "none", False, "published", ""


def settings(*changes: str) -> Params:
    """Return the settings of LLaDA-8B on one 80 GB card by the paper's equations, with changes."""
    raw = with_changes(profiles.resolve("llada-8b-gsm8k", "paper", "1x80gb"), list(changes))
    return checked(raw, Path("profile"))


def random_policy(
    config: DenoiserConfig,
    lora: AdapterConfig | None,
    device: torch.device,
    dtype: torch.dtype,
    kernels: str = "torch",
) -> LlmPolicy:
    """Return a policy with random weights, created on the device."""
    config_class(folder_name(config.model_type))  # registers the model's class
    torch.manual_seed(0)
    old = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            model = build_model(config)
    finally:
        torch.set_default_dtype(old)
    fuse(model, kernels)
    policy = LlmPolicy(model.eval().requires_grad_(False), AnyTokens(config), lora, 0)  # type: ignore[arg-type]
    policy.core.to(device)  # type: ignore[arg-type]
    return policy


def moved(policy: LlmPolicy, std: float = 0.05) -> LlmPolicy:
    """Move the adapter's B away from zero, as training does, so that the loss exceeds rounding."""
    generator = torch.Generator().manual_seed(1)
    for name, p in policy.trainable().items():
        if "lora_B" in name:
            p.data = (torch.randn(p.shape, generator=generator) * std).to(p)
    return policy


def algorithm(params: Params, policy: LlmPolicy) -> DOpsd:
    """Return d-OPSD with the settings and no task."""
    context = AlgorithmContext(NoTask(), policy, params.model, params.sampling, 0, 1, 1, 1)  # type: ignore[arg-type]
    return build(params.method.d_opsd, context)


def states_of(params: Params, method: DOpsd, rollout: Rollout) -> States:
    """Return the states of a trajectory that make one update, in main memory.

    Raises:
        ValueError: if the rollout has none.
    """
    planned = states_by_update([rollout], params.method.d_opsd, method.blocks, (0, 0))[0]
    if planned is None:
        raise ValueError("the rollout has no states to learn from")
    return planned
