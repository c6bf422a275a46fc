"""Choose the training problems of a collect: a new order each epoch, a share for each rank."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dopsd.core.errors import Code
from dopsd.core.rng import key_from

if TYPE_CHECKING:
    from accelerate import Accelerator

    from dopsd.core.types import Problem


class PromptSampler:
    """This rank's share of the training problems of each collect.

    A collect takes the next `size` problems of all ranks together, in an order that is shuffled
    anew each epoch and keyed by seed and epoch.
    """

    def __init__(
        self, problems: Sequence[Problem], size: int, seed: int, accelerator: Accelerator
    ) -> None:
        self.problems, self.size, self.seed = problems, size, seed
        self.rank, self.ranks = accelerator.process_index, accelerator.num_processes
        if self.ranks > size:
            raise Code.MISFIT.error(
                f"train.prompts_per_collect: {size} problems leave some of the {self.ranks} ranks"
                " without one; use at least one for each rank"
            )
        self.known: dict[int, list[int]] = {}

    def of(self, collect: int) -> list[Problem]:
        """Return this rank's problems of a collect, which is numbered from 0."""
        first, n = collect * self.size, len(self.problems)
        chosen = [
            self.problems[self._epoch(i // n)[i % n]] for i in range(first, first + self.size)
        ]
        # a collect across two epochs may hold a problem twice
        chosen = list({problem.id: problem for problem in chosen}.values())
        return chosen[self.rank :: self.ranks]

    def _epoch(self, epoch: int) -> list[int]:
        """Return the indices of an epoch's order; the last order is kept, as shuffling is slow."""
        if epoch not in self.known:
            order = list(range(len(self.problems)))
            random.Random(key_from("order", self.seed, epoch)).shuffle(order)
            self.known = {epoch: order}
        return self.known[epoch]
