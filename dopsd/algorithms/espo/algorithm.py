"""ESPO: policy gradient on whole completions, whose likelihood is a bound from pairs of masks.

ESPO (arXiv 2512.03759); the defaults are those of its published code. `objective` changes the loss
to that of GDSD (arXiv 2605.29398) or coupled-GRPO (arXiv 2506.20639).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dopsd.algorithms.common.base import Collected, LossOutput
from dopsd.algorithms.common.groups import RewardedGroups, group_collector
from dopsd.algorithms.common.losses import metric_sums
from dopsd.algorithms.common.views import Completions, Views, view_logps
from dopsd.algorithms.espo.batch import CoupledViews
from dopsd.algorithms.espo.loss import TERMS
from dopsd.algorithms.espo.masks import Draw, coupled_masks
from dopsd.core.rng import key_from

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dopsd.algorithms.common.base import AlgorithmContext
    from dopsd.algorithms.common.groups import Rewarded
    from dopsd.algorithms.espo.config import EspoConfig
    from dopsd.core.types import Problem, Rollout
    from dopsd.models.policy import Policy
    from dopsd.rollout.collector import RolloutCollector


def build(config: EspoConfig, context: AlgorithmContext) -> Espo:
    """Return the algorithm with its settings and the run's context."""
    return Espo(config, group_collector(config, context), context.sequences_at_once)


class Espo:
    """Compare rewards within groups of rollouts, and make several updates per collect.

    Args:
        config: settings of ESPO.
        collector: samples and scores rollouts.
        max_sequences: sequences of a forward pass that fit into memory.
    """

    normalize_by_all_prompts = False  # the mean over completions, or tokens; they hold advantages

    def __init__(self, config: EspoConfig, collector: RolloutCollector, max_sequences: int) -> None:
        self.config, self.collector, self.max_sequences = config, collector, max_sequences
        self.groups = RewardedGroups(config, collector, "loo")

    def collect(self, policy: Policy, problems: list[Problem], update: int) -> Collected:
        """Sample and reward groups, and return one update per inner iteration.

        Every update has its own masks, and log-probabilities under the current and the initial
        policy.
        """
        groups, stats = self.groups.sample(policy, problems, update)
        rewarded = [item for group in groups for item in group]
        iterations = range(self.config.iterations if rewarded else 0)
        return Collected([[self._group(policy, rewarded, update, n)] for n in iterations], stats)

    def _group(
        self, policy: Policy, rewarded: Sequence[Rewarded], update: int, iteration: int
    ) -> CoupledViews:
        """Return the completions under the masks of an iteration."""
        rollouts = [item.rollout for item in rewarded]
        texts = Completions.of(policy, rollouts)
        batch = self._masked(policy, texts, self._draw(rollouts, update, iteration))
        advantage = torch.tensor([item.advantage for item in rewarded])
        batch = batch.with_tensors(advantage=advantage).to(policy.device)
        old_logps = self._logps(policy, batch)
        with policy.reference():
            ref_logps = self._logps(policy, batch)
        return batch.with_tensors(old_logps=old_logps, ref_logps=ref_logps)

    def _draw(self, rollouts: Sequence[Rollout], update: int, iteration: int) -> Draw:
        """Return random keys that depend neither on the rank nor on the batch."""
        parts = "espo", self.collector.seed, update, iteration
        return Draw(
            torch.tensor([key_from(*parts, r.problem_id) for r in rollouts]),
            torch.tensor([key_from(*parts, r.problem_id, r.attempt) for r in rollouts]),
            torch.tensor([r.attempt for r in rollouts]),
            self.config.group_size,
        )

    def _masked(self, policy: Policy, texts: Completions, draw: Draw) -> CoupledViews:
        """Return the masked completions, with nothing yet in place of advantages and ln p."""
        tail, targets, ended = self.config.tail, texts.targets, texts.completion_mask
        eligible = ended if tail == "counted" else torch.ones_like(ended)
        counted = torch.ones_like(ended) if tail == "window" else ended
        hidden, view_weight = coupled_masks(self.config, draw, eligible)  # [B, N, G]
        loss_mask = hidden & counted[:, None]
        completions = torch.where(hidden, policy.mask_id, targets[:, None])
        prompts = texts.prompts[:, None].expand(-1, hidden.shape[1], -1)
        ids, nothing = torch.cat([prompts, completions], -1), torch.zeros(hidden.shape)
        is_by_token = self.config.objective == "token"
        weight = counted.sum(1).float() if is_by_token else torch.ones(len(targets))
        return CoupledViews(
            ids, texts.mask, targets, loss_mask, view_weight, weight, nothing, nothing, weight
        )

    def _logps(self, policy: Policy, batch: CoupledViews) -> Tensor:
        """Return ln p of the targets [B, N, G], without gradients."""
        most = self.collector.sampling.batch_size
        with torch.no_grad():
            return torch.cat([_view_logps(policy, part, most) for part in batch.split(most)])

    def loss(self, policy: Policy, batch: CoupledViews) -> LossOutput:
        """Return the loss of the objective with a KL penalty, summed over completions or tokens."""
        terms = TERMS[self.config.objective](
            self.config, batch, _view_logps(policy, batch, self.max_sequences)
        )
        totals = {"kl": terms.kl, "clip_ratio": terms.clipped, "logp": terms.logp}
        sums = metric_sums(
            {name: value.sum() for name, value in totals.items()},
            batch.on_host("weight").sum().item(),
        )
        return LossOutput((terms.loss + self.config.kl_weight * terms.kl).sum(), sums)


def _view_logps(policy: Policy, batch: CoupledViews, max_sequences: int) -> Tensor:
    views = Views(batch.ids, batch.attention_mask(), batch.targets, batch.on_host("loss_mask"))
    return view_logps(policy, views, max_sequences)
