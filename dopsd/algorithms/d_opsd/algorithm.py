"""d-OPSD: learn at every denoising step from the same model that is shown part of the future.

arXiv 2606.18195, section 3; the defaults are those of the published code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dopsd.algorithms.common.base import AlgorithmContext, Collected, LossOutput
from dopsd.algorithms.common.batch import Batch, States
from dopsd.algorithms.common.losses import entropy
from dopsd.algorithms.d_opsd.divergence import Divergence, shared_mass, top_overlap
from dopsd.algorithms.d_opsd.states import BlockSchedule, states_by_update
from dopsd.algorithms.d_opsd.teacher import AS_STUDENT, TeacherView, gathered
from dopsd.core.metrics import MetricSums
from dopsd.core.tensors import index_of, index_without, pack, take, widest
from dopsd.core.types import Problem, Rollout
from dopsd.rollout.collector import RolloutCollector, SelectedRollout

if TYPE_CHECKING:
    from dopsd.algorithms.d_opsd.config import DOpsdConfig
    from dopsd.models.policy import Policy


def build(config: DOpsdConfig, context: AlgorithmContext) -> DOpsd:
    """Return the algorithm with its settings and the run's context."""
    return DOpsd(config, *build_components(config, context))


def build_components(
    config: DOpsdConfig, context: AlgorithmContext
) -> tuple[RolloutCollector, BlockSchedule]:
    """Return a distilling algorithm's collector and block schedule, and set the teacher."""
    policy, sampling = context.policy, context.sampling
    attention = config.teacher_attention
    policy.use_teacher(config.teacher, config.ema_decay, config.teacher_dropout, attention)
    return context.collector(config), BlockSchedule.of(policy, sampling)


class DOpsd:
    """Sample up to pass@k, keep, and learn the teacher's distribution at each denoising state.

    By default the teacher has the student's prompt. A subclass may override `teacher_views`.
    """

    def __init__(
        self, config: DOpsdConfig, collector: RolloutCollector, blocks: BlockSchedule
    ) -> None:
        self.config, self.collector, self.blocks = config, collector, blocks
        self.normalize_by_all_prompts = config.denominator == "prompts"
        self.divergence = Divergence.of(config)

    def collect(self, policy: Policy, problems: list[Problem], collect: int) -> Collected:
        """Sample and keep rollouts, and cut the states of their trajectories into updates.

        Without `skip_empty`, a collect that keeps nothing makes as many updates as any other, on
        momentum and weight decay alone, as published.
        """
        scored = self.collector.collect(policy, problems, collect)
        selected = [item for item in scored if item.is_kept]
        rollouts, views = [item.best for item in selected], self.teacher_views(policy, selected)
        updates = self.updates(policy, rollouts, views, collect)
        return Collected(updates, self.collector.summary(policy, scored))

    def updates(
        self, policy: Policy, rollouts: list[Rollout], views: Sequence[TeacherView], collect: int
    ) -> list[list[Batch]]:
        """Return the batches of each update on these rollouts."""
        states = self._shared_states(policy, rollouts, views, (self.collector.seed, collect))
        updates: list[list[Batch]] = [[part] if part else [] for part in states]
        if not updates and not self.config.skip_empty:
            updates = [[] for _ in range(self.config.updates_per_trajectory)]
        return updates

    def _shared_states(
        self,
        policy: Policy,
        rollouts: list[Rollout],
        views: Sequence[TeacherView],
        key: tuple[int, int],
    ) -> list[States | None]:
        """Return the states of every update; with several processes, an equal share for each."""
        group = policy.process_group
        if group.size == 1:
            updates = states_by_update(rollouts, self.config, self.blocks, key, views)
            return [states and states.to(policy.device) for states in updates]
        rollouts, views = gathered(group, rollouts, views)
        share = group.rank, group.size
        update_states = states_by_update(rollouts, self.config, self.blocks, key, views, share)
        sizes = group.all_gather_object(
            [[0 if states is None else len(states) for states in update_states]]
        )
        return [
            states and states.to(policy.device)
            for states, rank_sizes in zip(update_states, zip(*sizes, strict=True), strict=True)
            if any(rank_sizes)
        ]

    def teacher_views(
        self, policy: Policy, selected: Sequence[SelectedRollout]
    ) -> Sequence[TeacherView]:
        """Return what the teacher of each rollout is given: by default what the student has."""
        return [AS_STUDENT] * len(selected)

    def loss(self, policy: Policy, batch: States) -> LossOutput:
        """Return the divergence at the positions K_s of each state, weighted and summed.

        The parts of the paper's Eq. 12: 1/|K_s| is here (reduction), 1/|S_y| is the batch's weight
        (states.states_by_update), and 1/N is Trainer._denominator, by which one_pass divides.
        """
        length = batch.candidates.shape[1]
        # [B, C]
        slots, valid = pack(batch.candidates, widest(batch.on_host("candidates")))
        with torch.no_grad(), policy.teacher():
            hidden = policy.hidden(batch.teacher_ids, batch.attention_mask("teacher_mask"))[
                :, -length:
            ]
            selected = self._positions(policy, take(hidden, slots), batch, slots, valid)
            positions = slots.gather(1, selected.index)  # [B, K]
            # [B, K, V], computed again: with the student's shapes both round in the same way
            teacher_logits = sampleable_logits(policy, take(hidden, positions))
        hidden = policy.hidden(batch.student_ids, batch.attention_mask("student_mask"))[:, -length:]
        student_logits = sampleable_logits(policy, take(hidden, positions))  # [B, K, V]
        value, unclipped, clipped = self.divergence(student_logits, teacher_logits)  # [B, K]
        per_state = (value * selected.valid).sum(1)  # [B]
        if self.config.reduction == "mean":
            per_state = per_state / selected.valid.sum(1)
        figures = {
            "divergence": unclipped,
            "clip_ratio": clipped,
            "overlap_top20": top_overlap(student_logits, teacher_logits),
        }
        figures |= {
            "student_entropy": entropy(student_logits.detach()),
            "teacher_entropy": entropy(teacher_logits),
        }
        figures["shared_mass"] = shared_mass(student_logits.detach(), teacher_logits)
        return LossOutput(
            (per_state * batch.weight).sum(),
            _by_block(figures, selected.valid, batch.on_host("block")),
        )

    def _positions(
        self, policy: Policy, hidden: Tensor, batch: States, slots: Tensor, valid: Tensor
    ) -> SelectedPositions:
        """Return K_s: the k candidates of which the teacher is surest, the committed, or all."""
        if self.config.position_selection == "all":  # packed: the valid ones come first
            return SelectedPositions(valid.long().cumsum(1) - 1, valid)
        if self.config.position_selection == "student":
            width = widest(batch.on_host("committed") & batch.on_host("candidates"))
            return SelectedPositions(*pack(batch.committed.gather(1, slots) & valid, width))
        confidence = (
            _largest_logit(policy, hidden)
            if self.config.teacher_confidence == "max_logit"
            else sampleable_logits(policy, hidden).float().softmax(-1).amax(-1)
        )  # [B, C]
        ranked = confidence.masked_fill(~valid, -torch.inf)
        order = ranked.sort(dim=1, descending=True, stable=True).indices
        width = int(batch.on_host("k").max())
        rank = torch.arange(width, device=order.device)
        return SelectedPositions(order[:, :width], rank < batch.k[:, None])


@dataclass(frozen=True)
class SelectedPositions:
    """Indices [B, K] into the packed candidates, and the mask [B, K] that is False on padding."""

    index: Tensor
    valid: Tensor


def sampleable_logits(policy: Policy, hidden: Tensor) -> Tensor:
    """Return the logits of tokens that can be sampled, [..., V - suppressed tokens].

    The mask and reserved ids then get neither confidence nor a share of the loss.
    """
    logits = policy.head(hidden)
    suppressed = tuple(policy.suppress_tokens)
    return logits.index_select(-1, index_without(suppressed, logits.shape[-1], logits.device))


def _largest_logit(policy: Policy, hidden: Tensor) -> Tensor:
    """Return the largest logit [...] of a token that can be sampled, without a copy of all."""
    logits = policy.head(hidden)
    suppressed = tuple(i for i in policy.suppress_tokens if i < logits.shape[-1])
    return logits.index_fill_(-1, index_of(suppressed, logits.device), -torch.inf).amax(-1).float()


def _by_block(figures: dict[str, Tensor], valid: Tensor, block: Tensor) -> MetricSums:
    """Sum each figure [B, K] over valid target positions, in total and by block.

    The sums of the states are copied from the device at once, and added up in main memory.

    Args:
        figures: values at the target positions, by name.
        valid: [B, K], False on padding.
        block: [B], index of the block of each state, in main memory.
    """
    totals = [(values.detach() * valid).sum(1) for values in figures.values()]
    *rows, count = torch.stack([*totals, valid.sum(1).to(totals[0].dtype)]).cpu()  # [B] each
    parts = {f"block_{b}/": block == b for b in block.unique().tolist()}
    counts = {prefix: count[part].sum().item() for prefix, part in parts.items()}
    sums = MetricSums()
    for name, total in zip(figures, rows, strict=True):
        sums.add(name, total.sum().item(), count.sum().item())
        for prefix, part in parts.items():
            sums.add(f"{prefix}{name}", total[part].sum().item(), counts[prefix])
    return sums
