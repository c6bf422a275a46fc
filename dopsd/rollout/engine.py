"""Run the sampler: pass@k in waves over all processes, and any number of requests in batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dopsd.core.progress import log
from dopsd.core.rng import key_from
from dopsd.core.types import Problem, Progressed, Rollout
from dopsd.rollout.config import Decoding
from dopsd.rollout.fast_dllm import denoise_approximately
from dopsd.rollout.sampler import GenerationRequest, Sampler, denoise

if TYPE_CHECKING:
    from dopsd.distributed.process_group import ProcessGroup
    from dopsd.models.policy import Policy


@dataclass(frozen=True)
class SamplingPlan:
    """How often a problem is attempted, and how each attempt is decoded."""

    attempts: int  # attempts per problem, at most
    first_temperature: float  # temperature of the first attempt
    retry_temperature: float  # temperature of all later attempts
    stop_at_first_correct: bool  # stop attempts at a problem after the first correct one
    decoding: Decoding  # lengths and steps; its temperature is replaced by that of the attempt
    key: tuple[int, int] = (0, 0)  # (seed, collect) of the random numbers


def generate_until_correct(
    policy: Policy,
    prompts: Sequence[tuple[Problem, Tensor]],
    plan: SamplingPlan,
    is_correct: Callable[[Problem, Rollout], bool],
    progressed: Progressed | None = None,
) -> dict[str, list[Rollout]]:
    """Sample each prompt until one rollout is correct or `plan.attempts` is reached.

    Attempts run in waves: wave n holds attempt n of every problem that still needs one, so batches
    stay full. The result equals sampling one problem after the other. Processes that hold the same
    weights share every wave; all of them must call.

    Args:
        prompts: problems of this process, each with its prompt [P].

    Returns:
        The rollouts of each problem by its id, attempts in order.
    """
    rollouts: dict[str, list[Rollout]] = {problem.id: [] for problem, _ in prompts}
    pending, first = list(prompts), 0
    while width := wave_width(policy.process_group, plan, first, len(pending)):
        wave = range(first, first + width)
        first += width
        wave_decoding = replace(
            plan.decoding, temperature=plan.retry_temperature if wave[0] else plan.first_temperature
        )
        requests = [
            GenerationRequest(problem.id, n, ids, key_from(*plan.key, problem.id, n))
            for problem, ids in pending
            for n in wave
        ]
        for rollout in denoise_shared(policy, requests, wave_decoding, progressed):
            rollouts[rollout.problem_id].append(rollout)
        if plan.stop_at_first_correct:
            pending = [
                (p, ids) for p, ids in pending if not _is_over(p, rollouts[p.id], is_correct)
            ]
    return rollouts


def wave_width(group: ProcessGroup, plan: SamplingPlan, first: int, waiting: int) -> int:
    """Return how many attempts at each pending problem the next wave makes.

    A wave makes several attempts at each problem if fewer are pending, in all processes, than there
    are processes, or than `min_rows` for each. Attempts after a correct one are then dropped and
    not counted; they use what would be idle, as a GPU is in a pass of few rows of a small base.

    Returns:
        The number of attempts; 0 if sampling is over.
    """
    width = plan.attempts - first
    if width and plan.stop_at_first_correct:
        total_waiting = sum(group.all_gather_object([waiting]))
        rows = group.size * plan.decoding.min_rows
        width = min(width, max(1, rows // total_waiting)) if total_waiting else 0
    return (
        min(width, 1) if first == 0 and plan.first_temperature != plan.retry_temperature else width
    )


def _is_over(
    problem: Problem, rollouts: list[Rollout], is_correct: Callable[[Problem, Rollout], bool]
) -> bool:
    """Return whether one of the attempts is correct; later ones, made ahead, are dropped."""
    for i, rollout in enumerate(rollouts):
        if is_correct(problem, rollout):
            del rollouts[i + 1 :]
            return True
    return False


def denoise_shared(
    policy: Policy,
    requests: Sequence[GenerationRequest],
    decoding: Decoding,
    progressed: Progressed | None = None,
) -> list[Rollout]:
    """Denoise the requests of all processes, an equal share in each.

    A process with hard problems then does not delay the others. Requests have no hints here.

    Args:
        progressed: called with the number of finished rollouts.

    Returns:
        The rollouts of this process's own requests, in their order.
    """
    group = policy.process_group
    if group.size == 1:
        return denoise_all(policy, requests, decoding, progressed)
    local_requests = [(d.problem_id, d.attempt, d.prompt_ids.tolist(), d.key) for d in requests]
    all_requests = sorted(
        group.all_gather_object(local_requests), key=lambda request: len(request[2])
    )
    assigned = [
        GenerationRequest(p, n, torch.tensor(ids), key)
        for p, n, ids, key in all_requests[group.rank :: group.size]
    ]
    completed = group.all_gather_object(
        [rollout.to_dict() for rollout in denoise_all(policy, assigned, decoding, progressed)]
    )
    by_key = {(values["problem_id"], values["attempt"]): values for values in completed}
    return [Rollout.from_dict(by_key[d.problem_id, d.attempt]) for d in requests]


def sampler_of(decoding: Decoding) -> Sampler:
    """Return the exact sampler, or Fast-dLLM's if a threshold or a cache is set."""
    is_exact = decoding.threshold is None and decoding.cache == "none"
    return denoise if is_exact else denoise_approximately


def denoise_all(
    policy: Policy,
    requests: Sequence[GenerationRequest],
    decoding: Decoding,
    progressed: Progressed | None = None,
) -> list[Rollout]:
    """Return the rollouts of requests in their order, in batches of similar prompt length.

    If a GPU runs out of memory, the batch size is halved, once: with masked padding no row depends
    on the others.
    """
    denoise_batch = sampler_of(decoding)
    order = sorted(range(len(requests)), key=lambda i: len(requests[i].prompt_ids))
    rollouts: dict[int, Rollout] = {}
    known_size = policy.rows_that_fit.get(decoding.gen_length)
    size = min(decoding.batch_size, known_size or decoding.batch_size)
    can_halve = decoding.mask_padding and not policy.needs_lockstep and known_size is None
    while remaining := order[len(rollouts) :]:
        indices = remaining[:size]
        batch = [requests[i] for i in indices]
        results = (
            _if_it_fits(denoise_batch, policy, batch, decoding)
            if can_halve and len(indices) > 1
            else denoise_batch(policy, batch, decoding)
        )
        if results is None:
            size, can_halve = -(-len(indices) // 2), False
            policy.rows_that_fit[decoding.gen_length] = size
            log(
                f"out of memory with {len(indices)} rollouts per forward; continuing with {size}."
                " Set batch_size to choose the number"
            )
            continue
        rollouts.update(zip(indices, results, strict=True))
        if progressed:
            progressed(len(indices))
    return [rollouts[i] for i in range(len(requests))]


def _if_it_fits(
    denoise_batch: Sampler,
    policy: Policy,
    batch: list[GenerationRequest],
    decoding: Decoding,
) -> list[Rollout] | None:
    """Return the rollouts, or None if memory ran out.

    The error holds the failed batch's memory, so it must not leave this function.
    """
    try:
        return denoise_batch(policy, batch, decoding)
    except torch.OutOfMemoryError:
        policy.release_memory()
        return None
