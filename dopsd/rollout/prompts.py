"""Tokenised prompts of a split, the sampler's settings, and what identifies answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from dopsd.core.errors import Code
from dopsd.core.fingerprint import fingerprint
from dopsd.models.backends import resolved
from dopsd.models.checkpoint_files import base_files
from dopsd.rollout.config import Decoding, SamplingConfig
from dopsd.tasks.common.storage import data_files
from dopsd.tasks.registry import package_of

if TYPE_CHECKING:
    from torch import Tensor

    from dopsd.core.types import Problem
    from dopsd.models.config import ModelConfig
    from dopsd.models.policy import Policy
    from dopsd.tasks.common.task import Task


def decoding(sampling: SamplingConfig, temperature: float = 0.0) -> Decoding:
    """Return the sampler's settings of a section.

    Args:
        sampling: lengths and steps; subclasses also set padding, threshold, fallback and cache.
    """
    names = {field.name for field in fields(Decoding)}
    values = {name: value for name, value in vars(sampling).items() if name in names}
    return Decoding(**values, temperature=temperature)


def fingerprint_of_answers(
    task: Task, split: str, model: ModelConfig, sections: dict[str, Any], *packages: str
) -> str:
    """Return 16 hex digits that identify answers to a split's problems.

    Those of a checkpoint also need the digest of its weights.

    Args:
        sections: further settings that decide the result, as JSON values.
        *packages: dotted names of further packages whose recipe numbers count.
    """
    decisive = {
        "model": resolved(model).decisive("path"),
        "task": task.name,
        "scoring": task.scoring,
        "instructions": task.instructions,
    }
    files = [*data_files(task.name, split), *base_files(model)]
    code = ("dopsd.core", "dopsd.models", "dopsd.tasks.common", "dopsd.rollout")
    return fingerprint(decisive | sections, files, *code, *packages, package_of(task.name))


@dataclass(frozen=True)
class PromptSet:
    """The problems of a split, and how they are asked."""

    task: Task  # the task, which asks
    problems: Sequence[Problem]  # the problems
    split: str  # name of the split
    prompt_style: str  # compact or instructions

    def prompts(self, policy: Policy, sampling: SamplingConfig) -> list[Tensor]:
        """Return the tokenised prompts, each [P], with the answer's prefill.

        Prompts are cut, on the left, only if `max_prompt_tokens` is set.
        """
        full_prompts = self._full_prompts(policy, sampling)
        prompts = [ids[-(sampling.max_prompt_tokens or len(ids)) :] for ids in full_prompts]
        for problem, ids in zip(self.problems, prompts, strict=True):
            if len(ids) + sampling.gen_length > policy.max_length:
                raise Code.MISFIT.error(
                    f"{self.task.name} problem {problem.id}: a prompt of {len(ids)} tokens and a"
                    f" completion of {sampling.gen_length} exceed the model's {policy.max_length};"
                    " lower gen_length or set sampling.max_prompt_tokens"
                )
        return prompts

    def _full_prompts(self, policy: Policy, sampling: SamplingConfig) -> list[Tensor]:
        return [
            policy.text.encode(self.task.messages(p, self.prompt_style), sampling.prefill)
            for p in self.problems
        ]

    def share_cut(self, policy: Policy, sampling: SamplingConfig) -> float:
        """Return the share of prompts that max_prompt_tokens cuts; they may lose instructions."""
        if sampling.max_prompt_tokens is None:
            return 0.0
        full_prompts = self._full_prompts(policy, sampling)
        return sum(len(ids) > sampling.max_prompt_tokens for ids in full_prompts) / len(
            full_prompts
        )
