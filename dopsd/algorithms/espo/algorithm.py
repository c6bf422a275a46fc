"""ESPO: policy gradient on whole completions, whose likelihood is a bound from pairs of masks.

ESPO (arXiv 2512.03759); the defaults are those of its published code. `objective` changes the loss
to that of GDSD (arXiv 2605.29398) or coupled-GRPO (arXiv 2506.20639).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from dopsd.algorithms.common.base import AlgorithmContext, LossOutput
from dopsd.algorithms.common.batch import Batch
from dopsd.algorithms.common.groups import GroupMethod, Rewarded, group_collector
from dopsd.algorithms.common.losses import clipped_gain, kl_estimate, metric_sums
from dopsd.algorithms.common.views import Completions, Views, random_ranks, view_logps
from dopsd.core.rng import fold_in, key_from, uniform
from dopsd.core.types import Rollout

if TYPE_CHECKING:
    from dopsd.algorithms.espo.config import EspoConfig
    from dopsd.models.policy import Policy


def build(config: EspoConfig, context: AlgorithmContext) -> Espo:
    """Return the algorithm with its settings and the run's context."""
    return Espo(config, group_collector(config, context), context.sequences_at_once)


class Espo(GroupMethod):
    """Compare rewards within groups of rollouts, and make several updates per collect."""

    config: EspoConfig
    baseline = "loo"
    normalize_by_all_prompts = False  # the mean over completions, or tokens; they hold advantages

    def batch(
        self, policy: Policy, taught: Sequence[Rewarded], collect: int, iteration: int
    ) -> CoupledViews:
        """Return the completions under the masks of an iteration.

        The log-probabilities are those under the current and the initial policy.
        """
        rollouts = [item.rollout for item in taught]
        texts = Completions.of(policy, rollouts)
        batch = self._masked(policy, texts, self._draw(rollouts, collect, iteration))
        advantage = torch.tensor([item.advantage for item in taught])
        batch = batch.with_tensors(advantage=advantage).to(policy.device)
        old_logps = self._logps(policy, batch)
        with policy.reference():
            ref_logps = self._logps(policy, batch)
        return batch.with_tensors(old_logps=old_logps, ref_logps=ref_logps)

    def _draw(self, rollouts: Sequence[Rollout], collect: int, iteration: int) -> Draw:
        """Return random keys that depend neither on the rank nor on the batch."""
        parts = "espo", self.collector.seed, collect, iteration
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


@dataclass(frozen=True)
class CoupledViews(Batch):
    """Completions under N masks each, with their advantages and earlier log-probabilities, in nats.

    Masks come in pairs of a mask and its complement; a full mask may follow.
    """

    ids: Tensor  # [B, N, P+G]
    mask: Tensor  # [B, P+G], False on padding
    targets: Tensor  # [B, G], the sampled completion
    loss_mask: Tensor  # [B, N, G], True where a masked token counts
    view_weight: Tensor  # [B, N], factor of ln p
    advantage: Tensor  # [B], reward less the mean of the group's other rewards
    old_logps: Tensor  # [B, N, G], of the targets, under the policy that sampled them
    ref_logps: Tensor  # [B, N, G], under the initial policy
    weight: Tensor  # [B], 1; with objective token: tokens that count

    @property
    def forwards(self) -> int:
        """Sequences in the forward passes of one completion: N."""
        return self.loss_mask.shape[1]

    @property
    def counted(self) -> Tensor:
        """Tokens that count, [B, G]: each is masked in one mask of every pair."""
        return self.loss_mask.any(1)

    @property
    def length(self) -> Tensor:
        """Number of tokens that count, L: [B]."""
        return self.counted.sum(1)


class _Terms(NamedTuple):
    """Terms of the loss of each completion, [B]; with objective `token` summed over its tokens."""

    loss: Tensor  # without the KL penalty
    kl: Tensor  # estimated KL to the initial policy, nats per token
    clipped: Tensor  # share where the clip takes effect
    logp: Tensor  # estimated ln p per token, nats


def sequence_logps(logps: Tensor, view_weight: Tensor) -> Tensor:
    """Return half the weighted sum of ln p over a mask and its complement (ESPO, section 4).

    With the weights of the bound it is an estimate of the bound of ln p(completion), [B, n].

    Args:
        logps: [B, 2n, G], 0 where no token is predicted.
        view_weight: [B, 2n].
    """
    pairs: Tensor = (logps.sum(-1) * view_weight).unflatten(1, (-1, 2))  # [B, n, 2]
    return pairs.sum(-1) / 2


def token_estimates(logps: Tensor, view_weight: Tensor) -> Tensor:
    """Return the weighted ln p of each token, mean over pairs, [B, G].

    With a full mask after the pairs it is the mean of both (coupled-GRPO's published code).

    Args:
        logps: [B, N, G], 0 where no token is predicted.
        view_weight: [B, N].
    """
    weighted, pairs = logps * view_weight[..., None], logps.shape[1] // 2
    coupled = weighted[:, : 2 * pairs].sum(1) / pairs
    return (coupled + weighted[:, -1]) / 2 if logps.shape[1] % 2 else coupled


def ratio_terms(config: EspoConfig, batch: CoupledViews, logps: Tensor) -> _Terms:
    """Return the terms of ESPO: the ratio of a completion is exp((E - E_old) / L).

    -min(r A, clip(r, 1-e, 1+e) A), and (E - E_ref)^2 / (2 L) as the KL.
    """
    now, old, ref = (
        sequence_logps(values, batch.view_weight).mean(1)
        for values in (logps, batch.old_logps, batch.ref_logps)
    )
    length, epsilon = batch.length, config.clip_range
    ratio = ((now - old) / length).exp()
    gain = clipped_gain(ratio, batch.advantage, 1 - epsilon, 1 + epsilon)
    clipped = (gain < ratio * batch.advantage).float()
    return _Terms(-gain, (now - ref).square() / (2 * length), clipped, now / length)


def squared_terms(config: EspoConfig, batch: CoupledViews, logps: Tensor) -> _Terms:
    """Return the terms of GDSD: the change of ln p per token is drawn towards psi A.

    (clamp(D - D_old) / L - psi A)^2, summed over draws as in the published code; clamped to
    ln(1 -+ e).
    """
    now, old, ref = (
        sequence_logps(values, batch.view_weight)
        for values in (logps, batch.old_logps, batch.ref_logps)
    )
    length, epsilon = batch.length[:, None], config.clip_range
    before, after = (length, 1) if config.clamp_on == "mean" else (1, length)
    change = (now - old) / before
    clamped = change.clamp(math.log1p(-epsilon), math.log1p(epsilon))
    error = clamped / after - config.psi * batch.advantage[:, None]
    kl = (now - ref).square() / (2 * length)
    clipped = (clamped != change).float()
    return _Terms(error.square().sum(1), kl.mean(1), clipped.mean(1), (now / length).mean(1))


def token_terms(config: EspoConfig, batch: CoupledViews, logps: Tensor) -> _Terms:
    """Return the terms of coupled-GRPO, summed over tokens: each token has a ratio of its own."""
    now, old, ref = (
        token_estimates(values, batch.view_weight)
        for values in (logps, batch.old_logps, batch.ref_logps)
    )
    ratio, advantage, epsilon = (now - old).exp(), batch.advantage[:, None], config.clip_range
    gain = clipped_gain(ratio, advantage, 1 - epsilon, 1 + epsilon)
    terms = (-gain, kl_estimate(now, ref), (gain < ratio * advantage).float(), now)
    return _Terms(*((term * batch.counted).sum(1) for term in terms))


TERMS = {"ratio": ratio_terms, "squared": squared_terms, "token": token_terms}


LEAST, MOST = 0.2, 0.8  # shares of masked tokens with `masks: share`


@dataclass(frozen=True)
class Draw:
    """What masks are drawn from."""

    group_keys: Tensor  # [B], the same for all completions of a problem
    keys: Tensor  # [B], one for each completion
    attempts: Tensor  # [B], index of the completion in its group
    group_size: int  # completions of a group


def coupled_masks(config: EspoConfig, draw: Draw, eligible: Tensor) -> tuple[Tensor, Tensor]:
    """Mask some of the eligible tokens of each completion, then all others of them.

    Args:
        draw: random keys of B completions.
        eligible: [B, G], tokens that may be shown; all others are always masked.

    Returns:
        The masks [B, N, G], a mask and its complement for each draw and last the full mask if the
        settings want it, and the weight of ln p at the masked eligible tokens of each [B, N].
    """
    draws = torch.arange(config.draws)
    spread = uniform(fold_in(draw.group_keys[:, None], draws))  # [B, n]
    keys = fold_in(draw.keys[:, None], draws)[..., None]  # [B, n, 1]
    places = uniform(fold_in(keys, torch.arange(eligible.shape[1])))  # [B, n, G]
    if config.masks == "share":
        share = LEAST + (MOST - LEAST) * spread
        first, rest = places < share[..., None], 1 - share
    else:
        length = eligible.sum(1)[:, None]  # [B, 1]
        count = masked_counts(spread, draw.attempts, draw.group_size, length)
        first = random_ranks(places, eligible[:, None]) < count[..., None]
        share, rest = count / (length + 1), (length - count) / (length + 1)
    pairs = torch.stack([first, ~first], 2).flatten(1, 2)  # [B, 2n, G]
    shares = torch.stack([share, rest], 2).flatten(1, 2)  # [B, 2n]; 0 where nothing is masked
    weight = torch.where(shares > 0, 1 / shares, 0.0)
    weight = weight if config.token_weight == "bound" else torch.ones_like(weight)
    if config.full_mask:
        pairs = torch.cat([pairs, torch.ones_like(pairs[:, :1])], 1)
        weight = torch.cat([weight, torch.ones_like(weight[:, :1])], 1)
    return pairs | ~eligible[:, None], weight.float()


def masked_counts(spread: Tensor, attempts: Tensor, group_size: int, length: Tensor) -> Tensor:
    """Return how many tokens to mask: equally far apart in each group, but for rounding.

    This is l_j = round(k + j (L + 1) / b) mod (L + 1), where k ~ U{0..L} is drawn for each group
    and draw. Each number of 0 to L comes as often, except where j (L + 1) / b ends in a half: round
    half to even then gives every second number, twice as often (L = 256, b = 6: j = 3).

    Args:
        spread: [B, n], uniform numbers of n draws, the same for all completions of a group.
        attempts: j, [B], index of the completion in its group.
        group_size: b.
        length: L, [B, 1].

    Returns:
        l, [B, n].
    """
    first = (spread.double() * (length + 1)).long()  # k
    step = (attempts[:, None] * (length + 1)).double() / group_size
    return (first + step).round().long() % (length + 1)
