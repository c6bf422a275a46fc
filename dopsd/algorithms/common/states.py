"""A rollout becomes training states: what the student saw at each step, and what the teacher is
shown of its future.

Pure functions of rollouts and keys (method notes, section 2; arXiv 2606.18195, section 3).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dopsd.algorithms.common.batch import States
from dopsd.core.rng import fold_in, key_from, uniform

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dopsd.algorithms.common.config import SelfDistillationConfig
    from dopsd.core.types import Rollout


@dataclass(frozen=True)
class BlockSchedule:
    """Where the blocks are, and which tokens have a meaning of their own."""

    block_length: int
    num_transfer_tokens: tuple[int, ...]
    mask_id: int
    eos_id: int


def recorded_steps(
    rollout: Rollout, config: SelfDistillationConfig, blocks: BlockSchedule
) -> list[int]:
    """Steps whose state is trained on, in order.

    `until_eos` keeps a state only while no end of text stands in it, or a mask is left before the
    first one; the last block is left out unless `record_last_block`.
    """
    per_block = len(blocks.num_transfer_tokens)
    num_blocks = len(rollout.completion_ids) // blocks.block_length
    last = num_blocks * per_block if config.record_last_block else (num_blocks - 1) * per_block
    steps = range(min(last, int(rollout.revealed_at.max()) + 1))
    return [s for s in steps if config.record == "all" or _is_unfinished(rollout, s, blocks)]


def _is_unfinished(rollout: Rollout, step: int, blocks: BlockSchedule) -> bool:
    masked = rollout.revealed_at >= step  # [G]
    ends = ((rollout.completion_ids == blocks.eos_id) & ~masked).nonzero()
    return len(ends) == 0 or bool(masked[: int(ends[0])].any())


def reveal(
    rollout: Rollout, step: int, config: SelfDistillationConfig, blocks: BlockSchedule, key: int
) -> Tensor:
    """Positions [G] that the teacher is shown at this step: a random share of the still-masked
    future.
    """
    masked = rollout.revealed_at >= step  # [G]
    if config.reveal_scope == "future_blocks":
        next_block = (step // len(blocks.num_transfer_tokens) + 1) * blocks.block_length
        ends = (rollout.completion_ids == blocks.eos_id).nonzero()
        masked = masked & (torch.arange(len(masked), device=masked.device) >= next_block)
        if len(ends) and next_block >= int(ends[0]):
            masked = torch.zeros_like(masked)
    count = int(config.reveal_ratio * int(masked.sum()))
    positions = torch.arange(len(masked), device=masked.device)
    draw = uniform(
        fold_in(fold_in(torch.tensor(key, device=masked.device), step), positions)
    ).masked_fill(~masked, 2.0)
    revealed = torch.zeros_like(masked)
    revealed[draw.argsort(stable=True)[:count]] = True
    return revealed


def trained_steps(
    rollout: Rollout, config: SelfDistillationConfig, blocks: BlockSchedule, key: int
) -> list[list[int]]:
    """The recorded steps, cut into one contiguous chunk an update.

    `drop_remainder` is the published rule: floor((S-1)/chunks) x chunks states train.
    `state_sample` draws that many uniformly first, which leaves the mean over states unbiased.
    """
    steps = recorded_steps(rollout, config, blocks)
    if config.state_sample and len(steps) > config.state_sample:
        draw = uniform(fold_in(torch.tensor(key), torch.tensor(steps) + 1_000_003))
        steps = [steps[i] for i in sorted(draw.argsort()[: config.state_sample].tolist())]
    chunks = min(config.updates_per_trajectory, max(len(steps) - config.drop_remainder, 1))
    if config.drop_remainder:
        steps = steps[: (len(steps) - 1) // chunks * chunks]
    edges = [len(steps) * i // chunks for i in range(chunks + 1)]
    return [steps[a:b] for a, b in itertools.pairwise(edges) if b > a]


def _state(
    rollout: Rollout, step: int, config: SelfDistillationConfig, blocks: BlockSchedule, key: int
) -> dict[str, Tensor] | None:
    """One state in completion coordinates, or None where the reveal left no position to train
    on.
    """
    masked = rollout.revealed_at >= step  # [G]
    revealed = reveal(rollout, step, config, blocks, key)
    block = step // len(blocks.num_transfer_tokens)
    block_index = torch.arange(len(masked), device=masked.device) // blocks.block_length
    candidates = masked & ~revealed & (block_index == block)
    committed = (rollout.revealed_at == step) & candidates
    k = min(
        blocks.num_transfer_tokens[step % len(blocks.num_transfer_tokens)], int(candidates.sum())
    )
    if k == 0 or (config.position_selection == "student" and not committed.any()):
        return None
    student_ids = rollout.completion_ids.masked_fill(masked, blocks.mask_id)
    return {
        "student_ids": student_ids,
        "teacher_ids": torch.where(revealed, rollout.completion_ids, student_ids),
        "candidates": candidates,
        "committed": committed,
        "k": torch.tensor(k, device=masked.device),
        "block": torch.tensor(block, device=masked.device),
        "step": torch.tensor(step, device=masked.device),
    }


def states_by_update(
    rollouts: Sequence[Rollout],
    config: SelfDistillationConfig,
    blocks: BlockSchedule,
    key: tuple[int, int],
    teacher_prompts: Mapping[str, Tensor] | None = None,
    share: tuple[int, int] = (0, 1),
) -> list[States | None]:
    """States of all kept rollouts, grouped by the update that trains on them; key is (seed,
    update).

    The weight of a state is 1 / (states of its trajectory in that update), so that each trajectory
    weighs one. A teacher with prompts of its own has them by problem, each [Q]. share is (rank,
    ranks): of each update a run of states as long as those of the other ranks, or None; alone,
    updates without a state are left out.
    """
    rank, ranks = share
    keyed_rollouts = [
        (rollout, key_from("reveal", *key, rollout.problem_id, rollout.attempt))
        for rollout in rollouts
    ]
    steps = [
        trained_steps(rollout, config, blocks, rollout_key)
        for rollout, rollout_key in keyed_rollouts
    ]
    updates: list[States | None] = []
    for update in range(config.updates_per_trajectory):
        update_steps = [chunks[update] if update < len(chunks) else [] for chunks in steps]
        total, entries, offset = sum(map(len, update_steps)), [], 0
        low, high = total * rank // ranks, total * (rank + 1) // ranks
        for (rollout, rollout_key), chunk in zip(keyed_rollouts, update_steps, strict=True):
            rank_slice = slice(max(low - offset, 0), max(high - offset, 0))
            if chunk[rank_slice]:
                chunk_states = [
                    _state(rollout, step, config, blocks, rollout_key) for step in chunk
                ]
                weight = 1 / max(sum(state is not None for state in chunk_states), 1)
                entries.append(
                    (rollout, [state for state in chunk_states[rank_slice] if state], weight)
                )
            offset += len(chunk)
        entries = [entry for entry in entries if entry[1]]
        updates.append(_stack(entries, blocks, teacher_prompts) if entries else None)
    return updates if ranks > 1 else [states for states in updates if states]


def _stack(
    entries: list[tuple[Rollout, list[dict[str, Tensor]], float]],
    blocks: BlockSchedule,
    teacher_prompts: Mapping[str, Tensor] | None,
) -> States:
    """Each rollout with its states and the weight of one."""
    prompts_by_side = {"student": [rollout.prompt_ids for rollout, *_ in entries]}
    prompts_by_side["teacher"] = (
        [teacher_prompts[r.problem_id] for r, *_ in entries]
        if teacher_prompts
        else prompts_by_side["student"]
    )
    width = {side: max(map(len, prompts)) for side, prompts in prompts_by_side.items()}
    rows: dict[str, list[Tensor]] = {}
    for i, (rollout, states, weight) in enumerate(entries):
        rollout_fields: dict[str, Tensor] = {}
        for side, prompts in prompts_by_side.items():
            pad = width[side] - len(prompts[i])
            rollout_fields[side] = torch.nn.functional.pad(
                prompts[i], (pad, 0), value=blocks.eos_id
            )
            positions = torch.arange(
                width[side] + len(rollout.completion_ids), device=rollout_fields[side].device
            )
            rollout_fields[f"{side}_mask"] = positions >= pad
        for state in states:
            row = state | {
                f"{side}_ids": torch.cat([rollout_fields[side], state[f"{side}_ids"]])
                for side in prompts_by_side
            }
            row |= {f"{side}_mask": rollout_fields[f"{side}_mask"] for side in prompts_by_side}
            row["weight"] = torch.tensor(weight, device=rollout.prompt_ids.device)
            for name, value in row.items():
                rows.setdefault(name, []).append(value)
    return States(**{name: torch.stack(values) for name, values in rows.items()})
