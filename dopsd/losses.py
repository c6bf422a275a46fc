"""Divergences, cross-entropies, clipped ratios and likelihood bounds, of tensors or of one forward of a policy."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from dopsd.batches import MaskedTexts, PreferenceBatch, Unmasking
from dopsd.types import Policy


@dataclass(frozen=True)
class Divergence:
    """Which divergence between student and teacher, over which entries, clipped at what (nats an entry)."""

    kind: str  # reverse_kl, forward_kl or jsd
    beta: float = 0.5
    top_k: int = 0  # 0: the full vocabulary; else the teacher's k best, both renormalised
    clip: float | None = None

    def __call__(self, student: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Student and teacher logits [..., V] -> clipped and unclipped divergence [...], share of entries clipped [...].

        Reverse KL is sum p_s (ln p_s - ln p_t); forward KL sum p_t (ln p_t - ln p_s); JSD with beta is
        beta KL(p_t||m) + (1-beta) KL(p_s||m), m = (1-beta) p_s + beta p_t. The clip caps each entry's term from above
        (pointwise clipping), so that a clipped sum may be negative.
        """
        if self.top_k:
            best = teacher.topk(min(self.top_k, teacher.shape[-1]), -1).indices
            student, teacher = student.gather(-1, best), teacher.gather(-1, best)
        s, t = student.float().log_softmax(-1), teacher.float().log_softmax(-1)  # [..., V]
        terms, pull, freed = self._terms(s, t)
        if self.clip is None:
            total = terms.sum(-1)
            return _carry(total, pull.sum(-1)), total, torch.zeros_like(total)
        capped = terms > self.clip
        value = terms.clamp(max=self.clip).sum(-1)
        gradient = torch.where(capped, freed, pull).sum(-1)
        return _carry(value, gradient), terms.sum(-1), capped.float().mean(-1)

    def _terms(self, s: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Each entry's term, and two quantities whose gradients are the term's: kept, and capped.

        The gradients are those of the literal terms, with sum(dp_s) = 0 used by hand: where student and teacher agree
        they are exactly zero instead of rounding noise, which AdamW would blow up to whole steps.
        """
        with torch.no_grad():
            p_s, p_t, gap = s.exp(), t.exp(), s - t
            mixed = torch.logaddexp(
                s + math.log1p(-self.beta), t + math.log(self.beta)
            )  # ln((1-beta) p_s + beta p_t)
            mixed = torch.where(s == t, s, mixed)
        if self.kind == "reverse_kl":
            return p_s * gap, s.exp() * gap, -s.exp()
        if self.kind == "forward_kl":
            return -p_t * gap, (p_s - p_t) * s, p_s * s
        terms = self.beta * p_t * (t - mixed) + (1 - self.beta) * p_s * (s.detach() - mixed)
        pull = (1 - self.beta) * s.exp() * (s.detach() - mixed)
        return terms, pull, torch.zeros_like(pull)


def _carry(value: Tensor, gradient: Tensor) -> Tensor:
    """The value of one tensor with the gradient of another."""
    return value + gradient - gradient.detach()


def top_overlap(student: Tensor, teacher: Tensor, k: int = 20) -> Tensor:
    """|top-k of the student ∩ top-k of the teacher| / k at each position (paper, Fig. 3). [..., V] -> [...]."""
    k = min(k, student.shape[-1])
    ours, theirs = student.topk(k, -1).indices, teacher.topk(k, -1).indices
    return (ours[..., :, None] == theirs[..., None, :]).any(-1).float().mean(-1)


def shared_mass(student: Tensor, teacher: Tensor) -> Tensor:
    """sum min(p_s, p_t): the probability that both give to the same tokens, 1 - total variation. [..., V] -> [...].

    Unlike the top-k overlap it weighs tokens: of a small vocabulary most of the top 20 may have no probability at all.
    """
    return torch.minimum(student.float().softmax(-1), teacher.float().softmax(-1)).sum(-1)


def entropy(logits: Tensor) -> Tensor:
    """Entropy of softmax(logits) in nats. [..., V] -> [...]."""
    logp = logits.float().log_softmax(-1)
    return -(logp.exp() * logp).sum(-1)


def masked_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """-ln p(target) at each masked token, in nats. logits [N, V], targets [N] -> [N] (LLaDA, Eq. 3 before the 1/t)."""
    return torch.nn.functional.cross_entropy(logits.float(), targets, reduction="none")


def masked_diffusion_loss(policy: Policy, batch: MaskedTexts) -> Tensor:
    """Per row: the sum over masked tokens of cross-entropy / t, over the completion's length. -> [B] (LLaDA, Eq. 5)."""
    length = batch.targets.shape[1]
    mask = None if bool(batch.mask.all()) else batch.mask
    hidden = policy.hidden(batch.ids, mask)[:, -length:]  # [B, G, D]
    rows = batch.loss_mask.nonzero()[:, 0]  # [N]
    each = masked_cross_entropy(
        policy.head(hidden[batch.loss_mask]), batch.targets[batch.loss_mask]
    )
    return torch.zeros_like(batch.weight).index_add(0, rows, each) * batch.token_weight / length


def token_logps(policy: Policy, ids: Tensor, mask: Tensor, targets: Tensor) -> Tensor:
    """ln p(target) at every position of the completion, in nats. ids, mask [B, P+G], targets [B, G] -> [B, G]."""
    length = targets.shape[1]
    hidden = policy.hidden(ids, None if bool(mask.all()) else mask)[:, -length:]  # [B, G, D]
    return -masked_cross_entropy(policy.head(hidden).flatten(0, 1), targets.flatten()).view_as(
        targets
    )


def policy_gradient(
    logps: Tensor,
    old_logps: Tensor,
    ref_logps: Tensor,
    advantage: Tensor,
    clip_range: float,
    kl_weight: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Per token: loss, whether its ratio was clipped, and the estimated KL to the reference. Log-probabilities [B, G].

    -min(r A, clip(r, 1-e, 1+e) A) + b (exp(ref - logp) - (ref - logp) - 1), r = exp(logp - old) (d1, Eq. 3 and 5).
    """
    ratio, gap = (logps - old_logps).exp(), ref_logps - logps
    kept = ratio.clamp(1 - clip_range, 1 + clip_range)
    kl = gap.expm1() - gap
    gain = torch.minimum(ratio * advantage, kept * advantage)
    return kl_weight * kl - gain, (kept * advantage < ratio * advantage).float(), kl


def likelihood_bound(policy: Policy, batch: PreferenceBatch, most: int) -> Tensor:
    """Estimated lower bound of ln p(completion | prompt), in nats, for both completions of every pair. -> [B, 2].

    Mean over the N masks of L / l times the sum of ln p at the l masked tokens (LLaDA, Eq. 6; LLaDA 1.5, section 3.1).
    `most` sequences stand in memory at once (two a pair at least): other masks are computed again in the backward pass.
    """
    size, sides, draws, _ = batch.loss_mask.shape
    at_once = max(1, most // (size * sides))
    parts = batch.loss_mask.split(at_once, dim=2)
    if len(parts) == 1:
        return _weighted(policy, batch, batch.loss_mask).sum(-1) / draws
    sums = [
        checkpoint(_weighted, policy, batch, part, use_reentrant=False).sum(-1) for part in parts
    ]
    return torch.stack(sums).sum(0) / draws


def _weighted(policy: Policy, batch: PreferenceBatch, loss_mask: Tensor) -> Tensor:
    """L / l times the sum of ln p at the masked tokens, for each of these masks. [B, 2, n, G] -> [B, 2, n]."""
    size, sides, draws, length = loss_mask.shape
    targets = batch.targets[:, :, None].expand(-1, -1, draws, -1).reshape(-1, length)  # [B*2*n, G]
    weight = batch.length[:, :, None] / loss_mask.sum(-1)  # [B, 2, n]
    loss_mask = loss_mask.reshape(-1, length)
    prompt, real = (x.repeat_interleave(sides * draws, 0) for x in (batch.prompt, batch.mask))
    after = (
        torch.arange(length, device=targets.device)
        >= batch.length.flatten().repeat_interleave(draws)[:, None]
    )
    ids = torch.cat(
        [prompt, torch.where(loss_mask | after, policy.mask_id, targets)], 1
    )  # the tail would tell the end
    mask = torch.cat([real, torch.ones_like(loss_mask)], 1)
    hidden = policy.hidden(ids, None if bool(mask.all()) else mask)[:, -length:]
    each = -masked_cross_entropy(policy.head(hidden[loss_mask]), targets[loss_mask])  # [masked]
    sums = torch.zeros(len(targets), dtype=each.dtype, device=each.device).index_add(
        0, loss_mask.nonzero()[:, 0], each
    )
    return sums.view(size, sides, draws) * weight


def preference(bounds: Tensor, ref_bounds: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """-ln sigma(beta ((B - B_ref)(preferred) - (B - B_ref)(rejected))), and that margin. [B, 2] -> [B], [B]."""
    gain = bounds - ref_bounds
    margin = beta * (gain[:, 0] - gain[:, 1])
    return -torch.nn.functional.logsigmoid(margin), margin


def unmasking(
    policy: Policy, batch: Unmasking, weight: float, temperature: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """Per row: (CE + CE of the complement + weight x H) / (2 + weight), means over tokens; and its parts. -> [B] (d3LLM).

    H is the entropy of softmax(logits / temperature) where the model's first choice is right, in either forward.
    """
    size, length = batch.targets.shape
    cross, entropies = [], torch.zeros(size, device=batch.targets.device)
    right = torch.zeros_like(entropies)
    for ids, loss_mask in ((batch.ids, batch.loss_mask), (batch.other_ids, batch.other_loss_mask)):
        hidden = policy.hidden(ids, None if bool(batch.mask.all()) else batch.mask)[:, -length:]
        logits, targets, rows = (
            policy.head(hidden[loss_mask]).float(),
            batch.targets[loss_mask],
            loss_mask.nonzero()[:, 0],
        )
        sums = torch.zeros_like(entropies).index_add(0, rows, masked_cross_entropy(logits, targets))
        cross.append(sums / loss_mask.sum(1).clamp(min=1))
        is_right = (logits.argmax(-1) == targets).float()
        entropies = entropies.index_add(0, rows, entropy(logits / temperature) * is_right)
        right = right.index_add(0, rows, is_right)
    mean = entropies / right.clamp(min=1)
    figures = {"cross_entropy": (cross[0] + cross[1]) / 2, "entropy": mean}
    return (cross[0] + cross[1] + weight * mean) / (2 + weight), figures
