"""Turn a rollout into training states: the student's input at each step, and the teacher's.

Pure functions of rollouts and keys (arXiv 2606.18195, section 3; docs/algorithms/d_opsd.md).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dopsd.algorithms.common.batch import States
from dopsd.algorithms.d_opsd.teacher import AS_STUDENT, TeacherView
from dopsd.core.rng import fold_in, key_from, uniform
from dopsd.core.tensors import first_index, left_pad
from dopsd.core.types import Rollout
from dopsd.rollout.config import SamplingConfig, shared_block
from dopsd.rollout.prompts import decoding

if TYPE_CHECKING:
    from dopsd.algorithms.d_opsd.config import DOpsdConfig
    from dopsd.models.policy import Policy


@dataclass(frozen=True)
class BlockSchedule:
    """The blocks of a completion."""

    block_length: int  # tokens of a block
    num_transfer_tokens: tuple[int, ...]  # tokens committed at each step of a block
    mask_id: int  # id of the mask
    eos_id: int  # id that ends a text
    # tokens of a block that a prompt may share with its completion; 1: it shares none
    shared: int = 1
    # whether a step commits any number of tokens, in as few steps as it takes
    by_threshold: bool = False

    @classmethod
    def of(cls, policy: Policy, sampling: SamplingConfig) -> BlockSchedule:
        """Return the blocks in which a policy samples."""
        counts = tuple(decoding(sampling).num_transfer_tokens)
        ids = policy.mask_id, policy.eos_id
        by_threshold = sampling.threshold is not None
        return cls(sampling.block_length, counts, *ids, shared_block(policy), by_threshold)

    def offset(self, rollout: Rollout) -> int:
        """Return the tokens of the prompt that stand in the completion's first blocks."""
        return len(rollout.prompt_ids) % self.shared

    def count(self, rollout: Rollout) -> int:
        """Return the number of blocks in which a completion stands, whole or in part."""
        return -(-(len(rollout.completion_ids) + self.offset(rollout)) // self.block_length)


def recorded_steps(
    rollout: Rollout,
    config: DOpsdConfig,
    blocks: BlockSchedule,
) -> list[int]:
    """Return the steps whose states are trained on, in order.

    `until_eos` keeps a state if it has no end of text yet, or a mask before the first one. The last
    block is left out unless `record_last_block` is set.
    """
    per_block = len(blocks.num_transfer_tokens)
    num_blocks = blocks.count(rollout)
    last = num_blocks * per_block if config.record_last_block else (num_blocks - 1) * per_block
    revealed_at = rollout.revealed_at.tolist()
    if config.record == "until_eos":  # the text is finished once all up to its end is committed
        revealed_at = revealed_at[: first_index(rollout.completion_ids, blocks.eos_id) + 1]
    steps = range(min(last, max(revealed_at) + 1))
    if blocks.by_threshold:  # the others were not made
        return sorted({*rollout.revealed_at.tolist()} & {*steps})
    return [*steps]


def reveal(
    rollout: Rollout,
    steps: Sequence[int],
    config: DOpsdConfig,
    blocks: BlockSchedule,
    key: int,
    view: TeacherView = AS_STUDENT,
) -> Tensor:
    """Return the positions that the teacher is shown at each step.

    They are a random share `reveal_ratio` of the positions that are still masked; with
    `future_blocks` only of those in later blocks, and none if the text ends before these. The view
    can narrow them.

    Args:
        steps: S denoising steps.
        view: what may be shown, and how many positions at least.

    Returns:
        [S, G], bool.
    """
    step = torch.tensor(steps)[:, None]  # [S, 1]
    masked = view.limit(rollout.revealed_at >= step)  # [S, G]
    positions = torch.arange(masked.shape[1])
    if config.reveal_scope == "future_blocks":
        next_block = (step // len(blocks.num_transfer_tokens) + 1) * blocks.block_length
        next_block = next_block - blocks.offset(rollout)
        end = first_index(view.completion(rollout), blocks.eos_id)
        masked &= (positions >= next_block) & (next_block < end)
    count = torch.tensor(
        [max(int(config.reveal_ratio * n), min(view.least, n)) for n in masked.sum(1).tolist()]
    )
    draw = uniform(fold_in(fold_in(torch.tensor(key), step), positions)).masked_fill(~masked, 2.0)
    order = draw.argsort(dim=1, stable=True)
    is_chosen = positions < count[:, None]  # of the positions in the order of their draws
    return torch.zeros_like(masked).scatter(1, order, is_chosen)


def trained_steps(
    rollout: Rollout,
    config: DOpsdConfig,
    blocks: BlockSchedule,
    key: int,
) -> list[list[int]]:
    """Return the steps to train on, one chunk per update.

    With S recorded steps, `drop_remainder` is the published rule: floor((S-1)/chunks) x chunks
    states are trained on. `state_sample` first draws that many steps uniformly, which leaves the
    mean over states unbiased.
    """
    steps = recorded_steps(rollout, config, blocks)
    if config.state_sample and len(steps) > config.state_sample:
        draw = uniform(fold_in(torch.tensor(key), torch.tensor(steps) + 1_000_003))
        steps = [steps[i] for i in sorted(draw.argsort()[: config.state_sample].tolist())]
    chunks = min(config.updates_per_trajectory, max(len(steps) - config.drop_remainder, 1))
    if config.drop_remainder:
        steps = steps[: (len(steps) - 1) // chunks * chunks]
    if config.chunks == "interleaved":
        return [steps[i::chunks] for i in range(chunks)]
    edges = [len(steps) * i // chunks for i in range(chunks + 1)]
    return [steps[a:b] for a, b in itertools.pairwise(edges) if b > a]


def _states(
    rollout: Rollout,
    steps: Sequence[int],
    config: DOpsdConfig,
    blocks: BlockSchedule,
    key: int,
    view: TeacherView,
) -> tuple[dict[str, Tensor], Tensor]:
    """Return the states of S steps in completion coordinates, by name of the field.

    The second value [S] is False where no position is left to train on.
    """
    step, per_block = torch.tensor(steps), len(blocks.num_transfer_tokens)
    masked = rollout.revealed_at >= step[:, None]  # [S, G]
    revealed = reveal(rollout, steps, config, blocks, key, view)
    block = step // per_block
    positions = torch.arange(masked.shape[1]) + blocks.offset(rollout)
    block_index = positions // blocks.block_length
    # K_s is chosen among these by DOpsd._positions
    candidates = masked & ~revealed & (block_index == block[:, None])
    student_ids = rollout.completion_ids.masked_fill(masked, blocks.mask_id)
    teacher_ids = torch.where(revealed, view.completion(rollout), student_ids)
    if config.teacher_attention == "causal":  # it reads the text, and knows nothing after its end
        teacher_ids = rollout.completion_ids.expand_as(student_ids)
        candidates[:, first_index(rollout.completion_ids, blocks.eos_id) + 1 :] = False
    committed = (rollout.revealed_at == step[:, None]) & candidates
    num_transfer_tokens = torch.tensor(blocks.num_transfer_tokens)[step % per_block]
    # |K_s|, where the teacher chooses the positions
    k = torch.minimum(num_transfer_tokens, candidates.sum(1))
    if blocks.by_threshold:
        k = torch.minimum((rollout.revealed_at == step[:, None]).sum(1), candidates.sum(1))
    states = {
        "student_ids": student_ids,
        "teacher_ids": teacher_ids,
        "candidates": candidates,
        "committed": committed,
        "k": k,
        "block": block,
        "step": step,
    }
    is_student = config.position_selection == "student"
    return states, (k > 0) & (committed.any(1) if is_student else True)


def states_by_update(
    rollouts: Sequence[Rollout],
    config: DOpsdConfig,
    blocks: BlockSchedule,
    key: tuple[int, int],
    views: Sequence[TeacherView] | None = None,
    share: tuple[int, int] = (0, 1),
) -> list[States | None]:
    """Return the states of all kept rollouts, grouped by the update that trains on them.

    The states are in main memory, for the caller to upload. The weight of a state is 1 / (states of
    its trajectory in that update), so that each trajectory weighs 1.

    Args:
        key: (seed, collect) of the random numbers.
        views: what the teacher of each rollout is given; None: the student's prompt, and the future
            of the rollout.
        share: (rank, ranks); each rank gets a contiguous share of an update's steps.

    Returns:
        One entry per update. With one rank, updates without states are left out; with several they
        are None.
    """
    rank, ranks = share
    views = views or [AS_STUDENT] * len(rollouts)
    keyed_rollouts = [
        (rollout, view, key_from("reveal", *key, rollout.problem_id, rollout.attempt))
        for rollout, view in zip(rollouts, views, strict=True)
    ]
    steps = [
        trained_steps(rollout, config, blocks, rollout_key)
        for rollout, _, rollout_key in keyed_rollouts
    ]
    updates: list[States | None] = []
    for update in range(config.updates_per_trajectory):
        update_steps = [chunks[update] if update < len(chunks) else [] for chunks in steps]
        total, entries, offset = sum(map(len, update_steps)), [], 0
        low, high = total * rank // ranks, total * (rank + 1) // ranks
        for (rollout, view, rollout_key), chunk in zip(keyed_rollouts, update_steps, strict=True):
            rank_slice = slice(max(low - offset, 0), max(high - offset, 0))
            if chunk[rank_slice]:
                chunk_states, is_left = _states(rollout, chunk, config, blocks, rollout_key, view)
                rows = torch.arange(len(chunk))[rank_slice][is_left[rank_slice]]
                states = {name: value[rows] for name, value in chunk_states.items()}
                states["weight"] = torch.full((len(rows),), 1 / max(int(is_left.sum()), 1))
                entries.append((rollout, view, states))
            offset += len(chunk)
        entries = [entry for entry in entries if len(entry[-1]["step"])]
        updates.append(_stack(entries, blocks) if entries else None)
    return updates if ranks > 1 else [states for states in updates if states]


def _stack(
    entries: list[tuple[Rollout, TeacherView, dict[str, Tensor]]], blocks: BlockSchedule
) -> States:
    """Stack the states of rollouts, with the prompts before their completions."""
    rollouts, views, parts = zip(*entries, strict=True)
    fields = {name: torch.cat([states[name] for states in parts]) for name in parts[0]}
    rows = torch.tensor([i for i, states in enumerate(parts) for _ in states["step"]])
    prompts = [rollout.prompt_ids for rollout in rollouts]
    shown = [view.prompt(rollout) for rollout, view in zip(rollouts, views, strict=True)]
    for side, side_prompts in (("student", prompts), ("teacher", shown)):
        ids, mask = (x[rows] for x in left_pad(side_prompts, blocks.eos_id))
        fields[f"{side}_ids"] = torch.cat([ids, fields[f"{side}_ids"]], 1)
        completion_mask = torch.ones_like(fields["candidates"])
        fields[f"{side}_mask"] = torch.cat([mask, completion_mask], 1)
    return States(**fields)
