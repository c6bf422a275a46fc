"""What a teacher is shown at the states of a trajectory: a share of a verified future (own).

A right rollout is shown its own later blocks. A wrong rollout is shown the gold answer where its
own answer stands, and nothing else: the teacher must not see a wrong future.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from dopsd.algorithms.common.views import random_ranks, rollout_keys
from dopsd.algorithms.d_opsd.states import BlockSchedule
from dopsd.core.rng import fold_in, uniform
from dopsd.core.tensors import first_index
from dopsd.rollout.answer_span import answer_span, with_answer
from dopsd.tasks.common.task import AnswerTask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dopsd.algorithms.common.base import AlgorithmContext
    from dopsd.algorithms.common.groups import Rewarded
    from dopsd.algorithms.trace_rl.algorithm import Collect
    from dopsd.algorithms.trace_rl.states import Plan
    from dopsd.core.types import Problem
    from dopsd.models.policy import Policy
    from dopsd.tasks.common.task import Task


class Verified(NamedTuple):
    """What a teacher may be shown of a completion.

    Attributes:
        ids: [G], the completion, with a right answer.
        showable: [G], positions that may be shown.
        latest: the last position at which a later block may begin.
    """

    ids: Tensor
    showable: Tensor
    latest: int


def verified(
    policy: Policy, task: Task, problem: Problem, item: Rewarded, after_eos: bool = False
) -> Verified:
    """Return the verified future of a rollout; without a showable position if there is none.

    The gold answer must fit into the place of the rollout's own, and the verifier must accept the
    text with it.

    Args:
        policy: the model, for its tokens.
        task: verifies.
        problem: the problem with its gold answer.
        item: the rollout, right or wrong.
        after_eos: the text after the first end of text is scored, too.
    """
    ids, text = item.rollout.completion_ids, policy.text
    positions = torch.arange(len(ids))
    if item.is_correct:
        return Verified(ids, positions >= 0, len(ids))
    span = answer_span(text, ids, policy.eos_id)
    gold = task.answer_text(problem) if isinstance(task, AnswerTask) else None
    filled = span and gold and with_answer(text, ids, span, gold, policy.eos_id)
    plain = text.decode(filled.ids, after_eos, special=False) if filled else ""
    if not filled or not task.verify(problem, plain).correct:
        return Verified(ids, positions < 0, 0)
    showable = (positions >= filled.start) & (positions < filled.closed)
    return Verified(filled.ids, showable, filled.start)


@dataclass(frozen=True)
class Future:
    """States as their teacher sees them.

    Attributes:
        completions: [B, G].
        shown: [B, G], masked positions that the teacher is shown.
        is_known: [R], rollouts with a verified future.
    """

    completions: Tensor
    shown: Tensor
    is_known: Sequence[bool]


def verified_future(
    policy: Policy,
    context: AlgorithmContext,
    plan: Plan,
    collect: Collect,
    key: tuple[str, int, int],
    share: float,
) -> Future:
    """Show the teacher of each state a random share of the verified future of its rollout.

    Args:
        policy: the model, for its tokens.
        context: task and lengths of the run.
        plan: B states.
        collect: their rollouts and problems.
        key: parts of the random keys.
        share: of the positions that can be shown.
    """
    problems = {problem.id: problem for problem in collect.problems}
    after_eos = context.sampling.text_after_eos
    futures = [
        verified(policy, context.task, problems[item.rollout.problem_id], item, after_eos)
        for item in collect.rewarded
    ]
    keys = fold_in(
        rollout_keys([item.rollout for item in collect.rewarded], *key)[plan.rollout], plan.first
    )
    blocks = BlockSchedule.of(policy, context.sampling)
    offsets = torch.tensor([blocks.offset(item.rollout) for item in collect.rewarded])
    offset = offsets[plan.rollout]
    sizes = blocks.block_length, policy.eos_id
    shown = shown_positions(plan, futures, keys, share, sizes, offset)
    completions = torch.stack([future.ids for future in futures])[plan.rollout]
    seen = torch.where(shown, completions, plan.batch.ids[:, -shown.shape[1] :])
    return Future(seen, shown, [bool(f.showable.any()) for f in futures])


def shown_positions(
    plan: Plan,
    futures: Sequence[Verified],
    keys: Tensor,
    share: float,
    blocks: tuple[int, int],
    offset: Tensor | int = 0,
) -> Tensor:
    """Draw the share that the teacher of each state is shown, rounded up.

    Only positions after the blocks of the predicted tokens are shown. An answer in the place of a
    wrong one is shown only while all of it is there, and no future after the end of the text.

    Args:
        plan: B states.
        futures: the verified future of each rollout of the plan.
        keys: [B], random keys.
        share: of the positions that can be shown.
        blocks: tokens of a block, and the id that ends a text.
        offset: [B], tokens of the prompt in the first block of the completion.

    Returns:
        [B, G], bool.
    """
    block_length, eos_id = blocks
    positions = torch.arange(plan.committed.shape[1])
    block = (positions + torch.as_tensor(offset)[..., None]) // block_length  # [B or 1, G]
    begin = (plan.committed * (block + 1)).amax(1) * block_length - offset  # [B]
    ends = torch.tensor([first_index(future.ids, eos_id) for future in futures])[plan.rollout]
    latest = torch.tensor([future.latest for future in futures])[plan.rollout]
    is_ahead = ((begin < ends) & (begin <= latest))[:, None]  # all of it is masked
    limits = torch.stack([future.showable for future in futures])[plan.rollout]
    showable = limits & is_ahead & (positions >= begin[:, None])
    count = (showable.sum(1, keepdim=True) * share).ceil()
    draw = uniform(fold_in(keys[:, None], positions))
    return showable & (random_ranks(draw, showable) < count)
