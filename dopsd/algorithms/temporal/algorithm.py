"""Temporal self-distillation: later states of a rollout teach its earlier ones.

The target of a masked token is what the model predicts there with more of the same rollout written:
in the state in which the token is committed (TSD, arXiv 2609.15177), in the mean of all later ones,
or with all other tokens of the finished answer (both for dOPSD, arXiv 2607.04428). The student
learns to know earlier what it will say.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dopsd.algorithms.common.base import AlgorithmContext, Collected, LossOutput
from dopsd.algorithms.common.batch import Batch
from dopsd.algorithms.common.groups import Rewarded, RewardedGroups, group_collector
from dopsd.algorithms.common.losses import metric_sums
from dopsd.algorithms.common.views import Completions
from dopsd.algorithms.d_opsd.divergence import Divergence
from dopsd.algorithms.temporal.targets import Top, each_alone, targets
from dopsd.algorithms.trace_rl.states import Steps, group_steps
from dopsd.core.rng import fold_in, key_from, uniform
from dopsd.core.tensors import first_index, true_positions
from dopsd.core.types import Problem
from dopsd.rollout.collector import RolloutStats
from dopsd.rollout.config import shared_block
from dopsd.rollout.likeliest import coarse, sampleable

if TYPE_CHECKING:
    from dopsd.algorithms.temporal.config import TemporalConfig
    from dopsd.models.policy import Policy


@dataclass(frozen=True)
class Taught(Batch):
    """States of rollouts, with what later states say about their masked tokens."""

    ids: Tensor  # [B, P+G], as the sampler saw them
    mask: Tensor  # [B, P+G], False on padding
    loss_mask: Tensor  # [B, G], True where a token is trained
    target_ids: Tensor  # [B, G, k], the likeliest tokens
    target_logps: Tensor  # [B, G, k+1], ln p of each, and of all others
    scale: Tensor  # [B], weight of the rollout in the loss
    weight: Tensor  # [B], 1 / (states of the rollout x rollouts of the problem)

    @property
    def padded_length(self) -> int:
        """Tokens of a sequence: P + G."""
        return self.ids.shape[1]


def build(config: TemporalConfig, context: AlgorithmContext) -> Temporal:
    """Return the algorithm with its settings and the run's context."""
    return Temporal(config, context)


class Temporal:
    """Sample groups of rollouts, and teach their states by later ones of the same rollout."""

    normalize_by_all_prompts = True

    def __init__(self, config: TemporalConfig, context: AlgorithmContext) -> None:
        self.config, self.context = config, context
        context.policy.use_teacher(config.teacher, config.ema_decay)
        kept = config.top_k if config.keeps_commits else 0
        self.collector = replace(group_collector(config, context), top_k=kept)
        self.groups = RewardedGroups(config, self.collector)
        self.divergence = Divergence(config.divergence, config.jsd_beta, 0, config.clip, True)

    def collect(self, policy: Policy, problems: list[Problem], collect: int) -> Collected:
        """Sample and weigh rollouts, and return updates with newly drawn states each."""
        groups, stats = self.groups.sample(policy, problems, collect)
        rollouts = [(item, self.scale(policy, item)) for group in groups for item in group]
        weighed = [(item, scale) for item, scale in rollouts if scale]
        stats = RolloutStats(stats.counters | {"trajectories": len(weighed)}, stats.metrics)
        if not weighed:
            return Collected([], stats)
        texts = Completions.of(policy, [item.rollout for item, _ in weighed])
        updates: list[list[dict[str, Tensor]]] = [[] for _ in range(self.config.iterations)]
        for row, (item, scale) in enumerate(weighed):
            text = {"prompt": texts.prompts[row], "mask": texts.mask[row]}
            counted = texts.completion_mask[row] & self._whole(policy, item)
            text |= {"counted": counted, "scale": torch.tensor(scale)}
            for part, rows in zip(updates, self._rows(policy, item, text, collect), strict=True):
                part += rows
        batches = [
            Taught(**{name: torch.stack([row[name] for row in part]) for name in part[0]})
            for part in updates
        ]
        return Collected([[batch.to(policy.device)] for batch in batches], stats)

    def _whole(self, policy: Policy, item: Rewarded) -> Tensor:
        """Return the positions [G] of whole blocks.

        Of the last block of a completion that shares its first one with the prompt, a part was cut
        off: no state has what its tokens were committed from.
        """
        length, size = len(item.rollout.completion_ids), shared_block(policy)
        shared = len(item.rollout.prompt_ids) % size
        return torch.arange(length) < (length + shared) // size * size - shared

    def scale(self, policy: Policy, item: Rewarded) -> float:
        """Return the weight of a rollout: its reward above 0, less where it is longer than wanted.

        Beyond `length_target` the weight falls linearly, to 0 at the full length (own choice).
        """
        scale = 1.0 if self.config.weight == "none" else max(0.0, item.reward)
        target, ids = self.config.length_target, item.rollout.completion_ids
        if target is None or target >= len(ids):
            return scale
        over = (first_index(ids, policy.eos_id) - target) / (len(ids) - target)
        return scale * (1 - max(0.0, over))

    def _rows(
        self, policy: Policy, item: Rewarded, text: dict[str, Tensor], collect: int
    ) -> list[list[dict[str, Tensor]]]:
        """Return the rows of a rollout in the batch of each update, by field of Taught."""
        c, ids = self.config, item.rollout.completion_ids
        steps = group_steps(item.rollout, text["counted"], 1)
        drawn = [self._drawn(steps, item, collect, n) for n in range(c.iterations)]
        trained = {
            i: steps.masked[i] & text["counted"] if c.positions == "masked" else steps.committed[i]
            for states in drawn
            for i in states
        }
        tops = self._targets(policy, item, steps, trained)

        def row(i: int, states: int) -> dict[str, Tensor]:
            state = ids.masked_fill(steps.masked[i], policy.mask_id)
            return {
                "ids": torch.cat([text["prompt"], state]),
                "mask": text["mask"],
                "loss_mask": trained[i],
                "target_ids": tops[i][0],
                "target_logps": tops[i][1],
                "scale": text["scale"],
                "weight": torch.tensor(1 / (states * c.group_size)),
            }

        return [[row(i, len(states)) for i in states] for states in drawn]

    def _drawn(self, steps: Steps, item: Rewarded, collect: int, number: int) -> list[int]:
        """Return the states of a rollout that an update trains on, drawn uniformly."""
        count = len(steps.first)
        if not self.config.states or self.config.states >= count:
            return list(range(count))
        rollout, seed = item.rollout, self.collector.seed
        key = key_from("temporal", seed, collect, number, rollout.problem_id, rollout.attempt)
        draw = uniform(fold_in(torch.tensor(key), torch.arange(count)))
        return sorted(draw.argsort()[: self.config.states].tolist())

    def _targets(
        self, policy: Policy, item: Rewarded, steps: Steps, trained: dict[int, Tensor]
    ) -> dict[int, Top]:
        """Return the targets of some states of a rollout."""
        rollout = item.rollout
        if rollout.top_ids is not None and rollout.top_logps is not None:
            return dict.fromkeys(trained, (rollout.top_ids, rollout.top_logps))
        if self.config.target == "finished":
            steps = each_alone(steps, trained.values())
        seen = rollout.completion_ids.masked_fill(steps.masked, policy.mask_id)  # [S, G]
        ids = torch.cat([rollout.prompt_ids.expand(len(seen), -1), seen], 1)
        with policy.teacher():
            rows = self.context.sequences_at_once
            found = targets(policy, ids, steps, list(trained.items()), self.config, rows)
        return dict(zip(trained, found, strict=True))

    def loss(self, policy: Policy, batch: Taught) -> LossOutput:
        """Return the divergence to the targets, summed over a state's positions, and weighted."""
        rows, columns = true_positions(batch.on_host("loss_mask"), batch.ids.device)  # [N]
        hidden = policy.hidden(batch.ids, batch.attention_mask())[:, -batch.loss_mask.shape[1] :]
        logits, ids = sampleable(policy, hidden[rows, columns]), batch.target_ids[rows, columns]
        student, target = coarse(logits, ids), batch.target_logps[rows, columns]  # [N, k+1]
        value, unclipped, _ = self.divergence(student, target)
        per_state = torch.zeros_like(batch.weight).index_add(0, rows, value)
        figures = {
            "divergence": unclipped.sum(),
            "target_entropy": -(target.exp() * target).sum(),
            "agreement": (logits.argmax(-1) == ids[:, 0]).float().sum(),
        }
        total = (per_state * batch.scale * batch.weight).sum()
        return LossOutput(total, metric_sums(figures, max(len(rows), 1)))
