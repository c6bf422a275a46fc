"""What later states of a rollout, or its end, say of each of its tokens: targets of earlier states.

Shapes follow the legend of core/types.py; S is the number of states of a rollout.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dopsd.rollout.likeliest import HEAD_ENTRIES, likeliest, sampleable

if TYPE_CHECKING:
    from dopsd.algorithms.temporal.config import TemporalConfig
    from dopsd.algorithms.trace_rl.states import Steps
    from dopsd.models.policy import Policy

Top = tuple[Tensor, Tensor]  # likeliest tokens [G, k], and ln p of each and of all others [G, k+1]


def teachers_of(state: int, steps: Steps, config: TemporalConfig) -> tuple[Tensor, Tensor]:
    """Return the first and the last state [G] whose mean teaches each position in a state.

    commit: the one in which the position was committed; snapshot: the one `gap` later, or that of
    the commit if it comes first; all_future: all later ones up to that of the commit; finished: the
    one that masks this position alone.
    """
    if config.target == "finished":
        alone = steps.masked.int().argmax(0)
        return alone, alone
    committed = steps.masked.sum(0) - 1  # [G], the last state in which a position is masked
    if config.target == "commit":
        return committed, committed
    later = committed.clamp(max=state + (config.gap if config.target == "snapshot" else 1))
    return later, later if config.target == "snapshot" else committed


def each_alone(steps: Steps, trained: Iterable[Tensor]) -> Steps:
    """Return the finished rollout as many times as positions are trained, each masked alone."""
    any_of = torch.stack([*trained]).any(0)  # [G]
    return replace(steps, masked=torch.eye(len(any_of), dtype=torch.bool)[any_of])


@torch.no_grad()
def targets(
    policy: Policy,
    ids: Tensor,
    steps: Steps,
    wanted: list[tuple[int, Tensor]],
    config: TemporalConfig,
    rows: int,
) -> list[Top]:
    """Return the targets of some states of a rollout, by forwards of the present weights.

    Args:
        ids: [S, P+G], the states that the teacher sees.
        wanted: indices of states, each with its trained positions [G].
    """
    length = steps.masked.shape[1]
    parts = [policy.hidden(part.to(policy.device), None) for part in ids.split(rows)]
    hidden = torch.cat([part[:, -length:] for part in parts])  # [S, G, D]
    found = []
    for state, trained in wanted:
        first, last = teachers_of(state, steps, config)
        places = trained.nonzero()[:, 0]
        ids, logps = _of_positions(policy, hidden, places, (first[places], last[places]), config)
        top = (ids.new_zeros(length, ids.shape[1]), logps.new_zeros(length, logps.shape[1]))
        top[0][places], top[1][places] = ids, logps
        found.append(top)
    return found


def _of_positions(
    policy: Policy,
    hidden: Tensor,
    places: Tensor,
    states: tuple[Tensor, Tensor],
    config: TemporalConfig,
) -> Top:
    """Return the mean distribution of M positions over their states, in main memory."""
    chunk, tops = max(1, HEAD_ENTRIES // policy.vocabulary), []
    for part in torch.arange(len(places)).split(chunk):
        first, counts = states[0][part], states[1][part] - states[0][part] + 1  # [m]
        of = torch.arange(len(part)).repeat_interleave(counts)  # [n], the position of each pair
        state = first[of] + torch.arange(len(of)) - (counts.cumsum(0) - counts)[of]
        mean = torch.zeros(len(part), policy.vocabulary, device=hidden.device)
        for pairs in torch.arange(len(of)).split(chunk):
            row, position = of[pairs], places[part][of[pairs]]
            logits = sampleable(policy, hidden[state[pairs], position])
            share = (1 / counts[row]).to(hidden.device)[:, None]
            mean.index_add_(0, row.to(hidden.device), logits.softmax(-1) * share)
        tops.append(likeliest(mean.log(), config.top_k))
    return torch.cat([ids for ids, _ in tops]).cpu(), torch.cat([logps for _, logps in tops]).cpu()
