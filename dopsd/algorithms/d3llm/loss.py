"""Cross-entropy of a masked block and of its complement, with an entropy term (d3LLM)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dopsd.algorithms.common.divergence import entropy
from dopsd.algorithms.common.losses import masked_cross_entropy
from dopsd.core.tensors import true_positions, upload

if TYPE_CHECKING:
    from dopsd.algorithms.common.batch import Unmasking
    from dopsd.models.policy import Policy


def unmasking(
    policy: Policy, batch: Unmasking, weight: float, temperature: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return (CE + CE of the complement + weight x H) / (2 + weight) of each row.

    CE and H are in nats per token. H is the entropy of softmax(logits / temperature), averaged over
    the tokens of both forwards where the model's first choice is correct.

    Args:
        policy: the model in training.
        batch: B solutions.
        weight: weight of the entropy term.
        temperature: temperature inside the entropy term.

    Returns:
        The loss [B], and the metrics `cross_entropy` and `entropy`, each [B].
    """
    size = len(batch.targets)
    cross_entropies, entropies = [], torch.zeros(size, device=batch.targets.device)
    num_correct = torch.zeros_like(entropies)
    for ids, name in ((batch.ids, "loss_mask"), (batch.other_ids, "other_loss_mask")):
        loss_mask = batch.on_host(name)
        rows, columns = true_positions(loss_mask, ids.device)
        hidden = policy.masked_states(ids, batch.attention_mask(), batch.targets)
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
