"""Detect the collapse of a run: its first attempts score much worse than they did.

Collapses are shown in arXiv 2606.18195, Fig. 4; the rule that detects them is not from the paper.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

from dopsd.core.progress import log

if TYPE_CHECKING:
    from dopsd.core.metrics import MetricSums
    from dopsd.training.config import TrainConfig


@dataclass
class CollapseDetector:
    """Detects a collapse from the first-attempt scores of each collect.

    A run has collapsed when the rolling mean of its scores falls below the best mean by the share
    `drop` and by `errors` standard errors of the difference between two windows. The second
    condition rules out chance: means over few answers vary widely, and the best of many is high by
    chance. A policy that is seldom right needs a wide window. Good checkpoints stay and selection
    takes the best of them, so a collapse only means that further training is lost time.
    """

    window: int  # collects in the rolling mean
    drop: float  # share of the best mean
    problems: int  # in a collect
    errors: float  # standard errors
    scores: list[float] = field(default_factory=list)  # mean score of each collect
    squares: list[float] = field(default_factory=list)  # mean squared score of each collect

    def see(self, score: float, square: float) -> bool:
        """Add a collect; return whether it is the first one of a collapse."""
        was_collapsed = self.is_collapsed
        self.scores.append(score)
        self.squares.append(square)
        return self.is_collapsed and not was_collapsed

    @property
    def means(self) -> list[float]:
        """Rolling means of full windows, first to last."""
        n = self.window
        return [sum(self.scores[i : i + n]) / n for i in range(len(self.scores) - n + 1)]

    @property
    def is_collapsed(self) -> bool:
        """Whether any rolling mean was far below the best one before it; a collapse is final."""
        best, scores, squares = 0.0, list(accumulate(self.scores)), list(accumulate(self.squares))
        for i, mean in enumerate(self.means):
            seen = i + self.window
            # variance of all answers so far
            variance = max(0.0, squares[seen - 1] / seen - (scores[seen - 1] / seen) ** 2)
            margin = self.errors * math.sqrt(2 * variance / (self.window * self.problems))
            if mean < (1 - self.drop) * best and mean < best - margin:
                return True
            best = max(best, mean)
        return False

    def describe(self, settings: TrainConfig) -> str:
        """Return one line about a collapse that has just been found."""
        outcome = (
            "the run ends here"
            if settings.stop_on_collapse
            else "train.stop_on_collapse true would end the run"
        )
        return (
            f"the run has collapsed: first attempts score {self.means[-1]:.2f}, after"
            f" {max(self.means):.2f} at best (means of {self.window} collects); {outcome}, and"
            " better checkpoints stay"
        )


def detector_of(settings: TrainConfig) -> CollapseDetector:
    """Return the detector of a run that begins."""
    s = settings
    return CollapseDetector(
        s.collapse_window, s.collapse_drop, s.prompts_per_collect, s.collapse_errors
    )


def look_for_collapse(
    detector: CollapseDetector, metrics: MetricSums, settings: TrainConfig, update: int
) -> None:
    """Give a collect's first-attempt scores to the detector, and log a new collapse.

    Args:
        metrics: metrics of the collect, over all ranks; the rolling mean is added.
    """
    names, scores = ("first_attempt_score", "first_attempt_square"), metrics.means()
    metrics.pop(names[1], None)
    if names[0] not in scores:
        return  # the method does not sample from the policy in training
    is_new = detector.see(*(scores[name] for name in names))
    if detector.means:
        metrics.add("rolling_score", detector.means[-1])
    if is_new:
        log(f"train: update {update}: {detector.describe(settings)}")
