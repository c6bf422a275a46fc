"""Divergences between student and teacher, and measures of their agreement."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Self

import torch
from torch import Tensor

if TYPE_CHECKING:
    from dopsd.algorithms.d_opsd.config import DOpsdConfig


class Terms(NamedTuple):
    """What the entries of the vocabulary add to a divergence, all [..., V]."""

    value: Tensor  # each entry's term; their sum is the divergence
    gradient: Tensor | None = None  # what is differentiated for a term that is kept; None: `value`
    # what is differentiated for a term that `clip` caps; None: nothing
    capped_gradient: Tensor | None = None


@dataclass(frozen=True)
class Divergence:
    """A divergence between student and teacher; a subclass may override `terms`."""

    kind: str  # reverse_kl, forward_kl or jsd; or the name of a subclass's own
    beta: float = 0.5  # weight of the teacher in the mixture of jsd
    # 0: over the full vocabulary; else over the teacher's k most likely tokens, with both
    # distributions renormalised
    top_k: int = 0
    clip: float | None = None  # bound of what is_by_position says, in nats; None: no bound
    # False: cap each vocabulary entry's term, as published; True: scale the whole position down to
    # the bound (own)
    is_by_position: bool = False

    @classmethod
    def of(cls, config: DOpsdConfig) -> Self:
        """Return the divergence of these settings."""
        top_k = config.top_k if config.loss_vocabulary == "teacher_top_k" else 0
        clip = None if config.clip_mode == "none" else config.clip
        is_by_position = config.clip_mode == "position"
        return cls(config.divergence, config.jsd_beta, top_k, clip, is_by_position)

    def __call__(self, student: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the divergence at each position.

        Reverse KL is sum p_s (ln p_s - ln p_t). Forward KL is sum p_t (ln p_t - ln p_s). JSD with
        beta is beta KL(p_t||m) + (1-beta) KL(p_s||m), m = (1-beta) p_s + beta p_t. The clip caps
        each entry's term from above (pointwise clipping), so that a clipped sum may be negative. By
        position, g D is returned, g = min(1, clip / D) without gradients: the gradient keeps the
        direction of the unclipped one.

        Args:
            student: logits [..., V].
            teacher: logits [..., V].

        Returns:
            The clipped divergence [...] with gradients, the unclipped one [...], both in nats, and
            the share of clipped entries [...]; by position it is 0 or 1.
        """
        if self.top_k:
            top_indices = teacher.topk(min(self.top_k, teacher.shape[-1]), -1).indices
            student, teacher = student.gather(-1, top_indices), teacher.gather(-1, top_indices)
        s, t = student.float().log_softmax(-1), teacher.float().log_softmax(-1)  # [..., V]
        literal, kept, capped = self.terms(s, t)
        grad_terms, terms = literal if kept is None else kept, literal.detach()
        if self.clip is None:
            total = terms.sum(-1)
            return _with_gradient_of(total, grad_terms.sum(-1)), total, torch.zeros_like(total)
        if self.is_by_position:
            total = terms.sum(-1)
            is_scaled, scale = position_scale(total, self.clip)
            value = _with_gradient_of(total, grad_terms.sum(-1))
            return scale * value, total, is_scaled.float()
        is_capped = terms > self.clip
        value = terms.clamp(max=self.clip).sum(-1)
        capped = torch.zeros_like(terms) if capped is None else capped
        gradient = torch.where(is_capped, capped, grad_terms).sum(-1)
        return _with_gradient_of(value, gradient), terms.sum(-1), is_capped.float().mean(-1)

    def terms(self, s: Tensor, t: Tensor) -> Terms:
        """Return each entry's term, and what is differentiated for it.

        The gradients are those of the literal terms, with sum(dp_s) = 0 applied by hand. Where
        student and teacher agree they are then exactly zero, instead of rounding noise that AdamW
        would scale up to full steps. With s = ln p_s: a kept term of reverse KL has the gradient
        p_s (s - t) ds + dp_s. Over kept entries the dp_s add up to minus those of the capped ones,
        whose surrogate is therefore -p_s. Forward KL's kept term, -p_t ds, is (p_s - p_t) ds - dp_s
        likewise. A term of JSD has no such rest.

        Args:
            s: ln p_s [..., V], with gradients.
            t: ln p_t [..., V].
        """
        with torch.no_grad():
            p_s, p_t, log_ratio = s.exp(), t.exp(), s - t
            log_mixture = torch.logaddexp(
                s + math.log1p(-self.beta), t + math.log(self.beta)
            )  # ln((1-beta) p_s + beta p_t)
            log_mixture = torch.where(s == t, s, log_mixture)
        if self.kind == "reverse_kl":
            return Terms(p_s * log_ratio, s.exp() * log_ratio, -s.exp())
        if self.kind == "forward_kl":
            return Terms(-p_t * log_ratio, (p_s - p_t) * s, p_s * s)
        terms = self.beta * p_t * (t - log_mixture) + (1 - self.beta) * p_s * (
            s.detach() - log_mixture
        )
        return Terms(terms, (1 - self.beta) * s.exp() * (s.detach() - log_mixture))


def position_scale(divergence: Tensor, bound: float) -> tuple[Tensor, Tensor]:
    """Return where a divergence exceeds the bound, and g = min(1, bound / divergence) (own).

    Args:
        divergence: [...], in nats.
        bound: the greatest divergence that is not scaled, in nats.

    Returns:
        [...] bool, and [...] without gradients: exactly 1 where nothing is scaled.
    """
    divergence = divergence.detach()
    is_scaled = divergence > bound
    return is_scaled, torch.where(is_scaled, bound / divergence, torch.ones_like(divergence))


def _with_gradient_of(value: Tensor, gradient: Tensor) -> Tensor:
    """Return the value of one tensor with the gradient of another."""
    return value + gradient - gradient.detach()


def top_overlap(student: Tensor, teacher: Tensor, k: int = 20) -> Tensor:
    """Return |student's top k ∩ teacher's top k| / k at each position of two logits (Fig. 3)."""
    k = min(k, student.shape[-1])
    student_top, teacher_top = student.topk(k, -1).indices, teacher.topk(k, -1).indices
    return (student_top[..., :, None] == teacher_top[..., None, :]).any(-1).float().mean(-1)


def shared_mass(student: Tensor, teacher: Tensor) -> Tensor:
    """Return sum min(p_s, p_t) at each position of two logits: 1 - total variation.

    Unlike the top-k overlap it weighs tokens: in a small vocabulary most of the top 20 may have
    almost no probability.
    """
    return torch.minimum(student.float().softmax(-1), teacher.float().softmax(-1)).sum(-1)
