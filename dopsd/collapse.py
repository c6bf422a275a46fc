"""Collapse watch: does a run still answer as well as it did? (arXiv 2606.18195, Fig. 4; the rule is ours.)"""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass
class Watch:
    """First-attempt scores of a run, one a collect; flags when their rolling mean falls a share `drop` below its best.

    And by `errors` standard errors of the two means, the variance of a score in [0, 1] being at most p (1 - p): small
    windows of right and wrong answers swing by more than any share, and the best of many is high by chance.
    Checkpoints that were good stay, and selection takes the best of them: a flag says that what follows is lost time.
    """

    window: int  # collects
    drop: float
    problems: int  # a collect
    errors: float
    scores: list[float] = field(default_factory=list)

    def see(self, score: float) -> bool:
        """Whether this score is the one that flags a collapse."""
        was = self.is_collapsed
        self.scores.append(score)
        return self.is_collapsed and not was

    @property
    def means(self) -> list[float]:
        """Rolling means of whole windows, first to last."""
        n = self.window
        return [sum(self.scores[i : i + n]) / n for i in range(len(self.scores) - n + 1)]

    @property
    def is_collapsed(self) -> bool:
        """Whether any rolling mean has been that far below the best before it; once flagged, it stays so."""
        best = 0.0
        for i, mean in enumerate(self.means):
            seen = self.scores[: i + self.window]
            p = min(1.0, max(0.0, sum(seen) / len(seen)))
            chance = self.errors * math.sqrt(2 * p * (1 - p) / (self.window * self.problems))
            if mean < (1 - self.drop) * best and mean < best - chance:
                return True
            best = max(best, mean)
        return False
