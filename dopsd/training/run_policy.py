"""Load the policy that a run trains."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dopsd.models.llm_policy import load_policy
from dopsd.training.start import start_folder

if TYPE_CHECKING:
    from dopsd.models.llm_policy import LlmPolicy
    from dopsd.training.run_settings import RunSettings


def policy_of(run: RunSettings, shard: bool) -> LlmPolicy:
    """Return the base with a fresh adapter, or with that of train.start_from.

    Args:
        run: the run.
        shard: split the base over the processes.

    Raises:
        DopsdError: if the base cannot be used, or the adapter does not fit it or train.lora.
    """
    policy = load_policy(run.model, run.train.lora, run.key.seed, shard=shard)
    if start := start_folder(run):
        policy.start_from(start, is_reference=run.train.reference == "start")
    return policy
