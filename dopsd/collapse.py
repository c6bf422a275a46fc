"""Collapse watch: does a run still answer as well as it did? (arXiv 2606.18195, Fig. 4; the rule is ours.)"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Watch:
    """First-attempt scores of a run, one a collect; flags when their rolling mean falls a share `drop` below its best.

    Checkpoints that were good stay, and selection takes the best of them: a flag says that what follows is lost time.
    """

    window: int  # collects
    drop: float
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
        for mean in self.means:
            if mean < (1 - self.drop) * best:
                return True
            best = max(best, mean)
        return False
