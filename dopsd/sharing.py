"""Rollouts as processes tell them to each other: plain numbers, whatever device they were made on."""

from __future__ import annotations

from typing import Any

import torch

from dopsd.types import Rollout

Told = tuple[str, int, list[int], list[int], list[int]]


def told(rollout: Rollout) -> Told:
    tensors = (rollout.prompt_ids, rollout.completion_ids, rollout.revealed_at)
    return rollout.problem_id, rollout.attempt, *(tensor.tolist() for tensor in tensors)


def heard(values: Told, device: Any) -> Rollout:
    problem_id, attempt, *rows = values
    return Rollout(problem_id, attempt, *(torch.tensor(row, device=device) for row in rows))
