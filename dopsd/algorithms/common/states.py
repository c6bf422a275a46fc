"""Turn a rollout into training states: the student's input at each step, and the teacher's.

Pure functions of rollouts and keys (arXiv 2606.18195, section 3; method notes, section 2).
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
    """The blocks of a completion.

    Attributes:
        block_length: tokens of a block.
        num_transfer_tokens: tokens committed at each step of a block.
        mask_id: id of the mask.
        eos_id: id that ends a text.
    """

    block_length: int
    num_transfer_tokens: tuple[int, ...]
    mask_id: int
    eos_id: int


def recorded_steps(
    rollout: Rollout, config: SelfDistillationConfig, blocks: BlockSchedule
) -> list[int]:
    """Return the steps whose states are trained on, in order.

    `until_eos` keeps a state if it has no end of text yet, or a mask before the first one. The last
    block is left out unless `record_last_block` is set.

    Args:
        rollout: the trajectory.
        config: record and record_last_block.
        blocks: the blocks of the completion.
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
    """Return the positions that the teacher is shown at this step.

    They are a random share `reveal_ratio` of the positions that are still masked; with
    `future_blocks` only of those in later blocks, and none if the text ends before these.

    Args:
        rollout: the trajectory.
        step: the denoising step.
        config: reveal_scope and reveal_ratio.
        blocks: the blocks of the completion.
        key: key of the draw.

    Returns:
        [G], bool.
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
    """Return the steps to train on, in one contiguous chunk per update.

    With S recorded steps, `drop_remainder` is the published rule: floor((S-1)/chunks) x chunks
    states are trained on. `state_sample` first draws that many steps uniformly, which leaves the
    mean over states unbiased.

    Args:
        rollout: the trajectory.
        config: drop_remainder, state_sample and updates_per_trajectory.
        blocks: the blocks of the completion.
        key: key of the draw.
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
    """Return one state in completion coordinates; None if no position is left to train on."""
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
    """Return the states of all kept rollouts, grouped by the update that trains on them.

    The weight of a state is 1 / (states of its trajectory in that update), so that each trajectory
    weighs 1.

    Args:
        rollouts: the kept rollouts.
        config: settings of the distillation.
        blocks: the blocks of a completion.
        key: (seed, update) of the random numbers.
        teacher_prompts: the teacher's own prompts [Q] by problem id; None: the student's.
        share: (rank, ranks); each rank gets a contiguous share of an update's steps.

    Returns:
        One entry per update. With one rank, updates without states are left out; with several they
        are None.
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
    """Stack the states; each entry is a rollout, its states, and the weight of one state."""
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
