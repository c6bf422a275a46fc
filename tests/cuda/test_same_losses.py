"""Losses and gradients of every algorithm from one batch: a card's are those of the CPU."""

from __future__ import annotations

import pytest
from card import CPU, GRADIENT, LOSS, Within, collect, distance, gradient_of, move, trainer

from dopsd.algorithms.registry import ALGORITHMS

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize("method", ALGORITHMS.names)
def test_loss_and_gradient(project, method: str, device, within: Within):
    here, there = trainer(method, CPU), trainer(method, device)
    batches = collect(here)
    denominator, losses, gradients = here._denominator(batches), [], []
    here.policy.core.double()  # from here on
    for loop in (here, there):
        move(loop, 0.01, seed=2)  # a later update: ratios to the policy that sampled are not 1
        uploaded = [batch.to(loop.policy.device) for batch in batches]
        metrics = loop.micro_batches.gradients(here.algorithm, loop.policy, uploaded, denominator)
        losses.append(metrics["loss"][0])
        gradients.append(gradient_of(loop))
    assert gradients[0].norm() > 1e-3
    # as a share of one nat: advantages sum to 0, and so may the terms of a loss
    within(LOSS, loss=abs(losses[1] - losses[0]) / max(abs(losses[0]), 1.0))
    within(GRADIENT, gradient=distance(gradients[1], gradients[0]))
