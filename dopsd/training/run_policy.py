"""Load the policy that a run trains."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dopsd.algorithms.registry import blocks_fault
from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError
from dopsd.models.llm_policy import load_policy
from dopsd.training.start import start_folder

if TYPE_CHECKING:
    from dopsd.models.llm_policy import LlmPolicy
    from dopsd.training.run_settings import RunSettings


def policy_of(run: RunSettings, shard: bool) -> LlmPolicy:
    """Return the base with a fresh adapter or with all weights in training, or train.start_from.

    Args:
        run: the run.
        shard: split the base over the processes.

    Raises:
        DopsdError: if the base cannot be used, its attention hides what the teacher is shown, or
            the start does not fit it or train.lora.
    """
    train, reference = run.train, run.train.reference if run.algorithm.needs_reference else None
    policy = load_policy(run.model, train.adapter, run.key.seed, shard=shard)
    if policy.attention_pattern == "block_causal":
        refuse_unseen(run)
    if train.weights == "all":
        policy.train_all()
        if reference == "base":
            policy.keep_reference()
    if start := start_folder(run):
        policy.load(start)
        if reference == "start":
            policy.keep_reference()
    return policy


def refuse_unseen(run: RunSettings) -> None:
    """Refuse settings that teach a block-causal base nothing.

    Raises:
        DopsdError: if the teacher knows more than the student by later blocks alone.
    """
    if fault := blocks_fault(run.kind, run.algorithm):
        raise DopsdError(fault, code=Code.CONTRADICTION)
