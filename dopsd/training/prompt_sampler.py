"""Which training problems a collect takes: a new order each epoch, a share for each rank."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from dopsd.core.rng import key_from

if TYPE_CHECKING:
    from collections.abc import Sequence

    from accelerate import Accelerator

    from dopsd.core.types import Problem


class PromptSampler:
    """The training problems, `size` a collect, in a new order each epoch; this rank's share of
    them.
    """

    def __init__(
        self, problems: Sequence[Problem], size: int, seed: int, accelerator: Accelerator
    ) -> None:
        self.problems, self.size, self.seed = problems, size, seed
        self.rank, self.ranks = accelerator.process_index, accelerator.num_processes
        self.known: dict[int, list[int]] = {}

    def of(self, collect: int) -> list[Problem]:
        """The problems of the collect with this number."""
        first, n = collect * self.size, len(self.problems)
        chosen = [
            self.problems[self._epoch(i // n)[i % n]] for i in range(first, first + self.size)
        ]
        chosen = list(
            {problem.id: problem for problem in chosen}.values()
        )  # an epoch's edge may bring one twice
        return chosen[self.rank :: self.ranks]

    def _epoch(self, epoch: int) -> list[int]:
        """Indices in this epoch's order; kept, since a large split takes its time to shuffle."""
        if epoch not in self.known:
            order = list(range(len(self.problems)))
            random.Random(key_from("order", self.seed, epoch)).shuffle(order)
            self.known = {epoch: order}
        return self.known[epoch]
