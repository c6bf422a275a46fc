"""d3LLM: off-policy self-distillation along recorded trajectories.

Recorded trajectories give only the order of masks; the targets are reference solutions. One block
is drawn: text before it is clean, text after it is masked, and inside it the tokens that were
written last are masked. The complement of the block's mask is trained on as well. An entropy term
prepares the model for parallel decoding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dopsd.algorithms.common.base import AlgorithmContext, Collected, LossOutput
from dopsd.algorithms.common.batch import Unmasking
from dopsd.algorithms.common.losses import entropy, masked_cross_entropy, metric_sums
from dopsd.algorithms.common.solutions import Solutions
from dopsd.algorithms.d3llm.recording import Recorder
from dopsd.core.metrics import MetricSums
from dopsd.core.rng import fold_in, key_from, uniform
from dopsd.core.tensors import left_pad, through_first, true_positions, upload
from dopsd.core.types import Problem
from dopsd.rollout.collector import RolloutStats

if TYPE_CHECKING:
    from dopsd.algorithms.d3llm.config import D3llmConfig
    from dopsd.models.policy import Policy


def build(config: D3llmConfig, context: AlgorithmContext) -> D3llm:
    """Return the algorithm with its settings and the run's context."""
    return D3llm(config, context)


class D3llm:
    """Learn blocks of solutions, masked in the order in which the initial policy writes them."""

    normalize_by_all_prompts = False

    def __init__(self, config: D3llmConfig, context: AlgorithmContext) -> None:
        self.config, self.context, self.seed = config, context, context.seed
        self.recorder = Recorder(config, context)
        self.solutions = Solutions(context.task, "d3llm", context.sampling.gen_length)
        self.size = len(context.task.load("train"))

    def collect(self, policy: Policy, problems: list[Problem], collect: int) -> Collected:
        """Return one update: a masked block of each problem's solution.

        In the first epoch every recording counts as rollouts, and time that other runs spent on
        recordings counts as borrowed seconds.
        """
        # recorded by other runs, or earlier in this one
        known_before = {problem.id for problem in problems} & set(self.recorder.known)
        recorded = self.recorder.record(problems)
        # from the second epoch on, the recordings are those of this run
        is_first = collect * self.context.prompts_per_collect < self.size
        # counted in full, even if another run made the recording
        new_rollouts = sum(item.tries for item in recorded) if is_first else 0
        borrowed = [r for r in recorded if is_first and r.problem_id in known_before]
        prompts, prompt_mask = left_pad(self.context.prompts(problems), policy.eos_id)  # [B, P]
        length = self.context.sampling.gen_length
        targets = torch.stack(self.solutions.of(policy, problems))  # [B, G]
        steps = torch.tensor([item.revealed_at for item in recorded])  # [B, G]
        keys = torch.tensor([key_from("d3llm", self.seed, collect, p.id) for p in problems])
        in_block, loss_mask, after_block = self.masks(
            steps, through_first(targets, policy.eos_id).sum(1), keys, collect
        )
        sums = MetricSums()
        sums.add("recorded_correct", sum(item.correct for item in recorded), len(recorded))
        # the time that this run would have taken to record: a cost, like the rollouts
        sums.add("time/borrowed_seconds", sum(item.seconds for item in borrowed))
        sums.add("time/borrowed_cpu_seconds", sum(item.cpu_seconds for item in borrowed))
        counters = {
            "trajectories": len(problems),
            "rollouts": new_rollouts,
            "sampled_tokens": new_rollouts * length,
        }
        ids, other_ids = (
            torch.cat([prompts, targets.masked_fill(block_mask | after_block, policy.mask_id)], 1)
            for block_mask in (loss_mask, in_block & ~loss_mask)
        )
        mask = torch.cat([prompt_mask, torch.ones_like(after_block)], 1)
        weight = torch.ones(len(problems))
        batch = Unmasking(ids, other_ids, mask, targets, loss_mask, in_block & ~loss_mask, weight)
        return Collected([[batch.to(policy.device)]], RolloutStats(counters, sums))

    def masks(
        self, steps: Tensor, length: Tensor, keys: Tensor, collect: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Draw a block of each solution, and mask the part of it that was written last.

        Only blocks with text are drawn, which is this project's choice: after the end of text there
        is nothing to learn. Over training the block grows from first_block to last_block, and the
        smallest share of masks from 0 to most_masked.

        Args:
            steps: [B, G], step at which each position was written.
            length: [B], tokens of the solution up to the end of text.
            keys: [B], keys of the draw.

        Returns:
            Masks of the block, of its part written last, and of all positions after it, each [B,
            G].
        """
        c, positions = self.config, torch.arange(steps.shape[1])
        progress = min(1.0, collect / max(1, self.context.updates - 1))
        size = round(c.first_block + (c.last_block - c.first_block) * progress)
        draw = uniform(fold_in(keys[:, None], torch.arange(2)))  # [B, 2]
        # [B], of a block that has text
        start = (draw[:, 0] * ((length + size - 1) // size)).long() * size
        in_block = (positions >= start[:, None]) & (positions < start[:, None] + size)
        # U(progress x most_masked, most_masked)
        mask_ratio = c.most_masked * (progress + (1 - progress) * draw[:, 1])
        count = (mask_ratio * in_block.sum(1)).round().clamp(min=1)  # [B]
        # rank 0: written last
        rank = (
            steps.masked_fill(~in_block, -1)
            .argsort(dim=1, descending=True, stable=True)
            .argsort(dim=1)
        )
        return in_block, in_block & (rank < count[:, None]), positions >= start[:, None] + size

    def loss(self, policy: Policy, batch: Unmasking) -> LossOutput:
        """Return cross-entropy of both masks with the entropy term, weighted and summed."""
        c = self.config
        losses, figures = unmasking(policy, batch, c.entropy_weight, c.entropy_temperature)  # [B]
        sums = metric_sums({name: values.sum() for name, values in figures.items()}, len(batch))
        return LossOutput((losses * batch.weight).sum(), sums)


def unmasking(
    policy: Policy, batch: Unmasking, weight: float, temperature: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return (CE + CE of the complement + weight x H) / (2 + weight) of each row.

    CE and H are in nats per token. H is the entropy of softmax(logits / temperature), averaged over
    the tokens of both forwards where the model's first choice is correct.

    Returns:
        The loss [B], and the metrics `cross_entropy` and `entropy`, each [B].
    """
    size = len(batch.targets)
    cross_entropies, entropies = [], torch.zeros(size, device=batch.targets.device)
    num_correct = torch.zeros_like(entropies)
    for ids, name in ((batch.ids, "loss_mask"), (batch.other_ids, "other_loss_mask")):
        loss_mask = batch.on_host(name)
        rows, columns = true_positions(loss_mask, ids.device)
        hidden = policy.masked_hidden(ids, batch.attention_mask(), batch.targets)
        logits, targets = policy.head(hidden[rows, columns]).float(), batch.targets[rows, columns]
        sums = torch.zeros_like(entropies).index_add(0, rows, masked_cross_entropy(logits, targets))
        num_masked = upload(loss_mask.sum(1).clamp(min=1), ids.device)
        cross_entropies.append(sums / num_masked)
        is_correct = (logits.argmax(-1) == targets).float()
        entropies = entropies.index_add(0, rows, entropy(logits / temperature) * is_correct)
        num_correct = num_correct.index_add(0, rows, is_correct)
    mean_entropy = entropies / num_correct.clamp(min=1)
    figures = {
        "cross_entropy": (cross_entropies[0] + cross_entropies[1]) / 2,
        "entropy": mean_entropy,
    }
    return (cross_entropies[0] + cross_entropies[1] + weight * mean_entropy) / (2 + weight), figures
