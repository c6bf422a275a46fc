"""Collapse watch: does a run still answer as well as it did? (arXiv 2606.18195, Fig. 4; the rule is
ours.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dopsd.training.config import TrainConfig


@dataclass
class CollapseDetector:
    """First attempts of a run, collect by collect; flags when their rolling mean falls a share
    `drop` below its best.

    And by `errors` standard errors of the difference between two windows of such answers: small
    windows of right and wrong swing by more than any share, and the best of many is high by chance.
    A policy that is seldom right needs wide windows. Checkpoints that were good stay, and selection
    takes the best of them: a flag says that what follows is lost time.
    """

    window: int  # collects
    drop: float
    problems: int  # a collect
    errors: float
    scores: list[float] = field(default_factory=list)  # mean of each collect
    squares: list[float] = field(default_factory=list)  # mean square of its scores

    def see(self, score: float, square: float) -> bool:
        """Whether this collect is the one that flags a collapse."""
        was_collapsed = self.is_collapsed
        self.scores.append(score)
        self.squares.append(square)
        return self.is_collapsed and not was_collapsed

    @property
    def means(self) -> list[float]:
        """Rolling means of whole windows, first to last."""
        n = self.window
        return [sum(self.scores[i : i + n]) / n for i in range(len(self.scores) - n + 1)]

    @property
    def is_collapsed(self) -> bool:
        """Whether any rolling mean has been that far below the best before it; once flagged, it
        stays so.
        """
        best, scores, squares = 0.0, list(accumulate(self.scores)), list(accumulate(self.squares))
        for i, mean in enumerate(self.means):
            seen = i + self.window
            variance = max(
                0.0, squares[seen - 1] / seen - (scores[seen - 1] / seen) ** 2
            )  # of all answers so far
            margin = self.errors * math.sqrt(2 * variance / (self.window * self.problems))
            if mean < (1 - self.drop) * best and mean < best - margin:
                return True
            best = max(best, mean)
        return False


def detector_of(settings: TrainConfig, *history: list[float]) -> CollapseDetector:
    """Return the detector of a run; `history`: its scores and their squares so far."""
    s = settings
    rule = (s.collapse_window, s.collapse_drop, s.prompts_per_collect, s.collapse_errors)
    return CollapseDetector(*rule, *history)
