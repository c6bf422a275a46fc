"""Tell from a run's log and scores after which update it ends under changed settings."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from dopsd.training.collapse import detector_of

if TYPE_CHECKING:
    from dopsd.training.config import TrainConfig

WATCHING = ("collapse_window", "collapse_drop", "collapse_errors")


def watched_again(
    rows: list[dict[str, Any]], state: dict[str, Any], settings: TrainConfig
) -> list[dict[str, Any]]:
    """Return a log's rows as other collapse_* settings would have written them.

    Args:
        rows: the log's rows.
        state: state.json of the last checkpoint, with the scores of all collects.
        settings: section `train` with the new settings.
    """
    scores, squares = state["scores"], state["squares"]
    # Without a score for each collect, the method's rollouts are not those of the trained policy.
    if len(scores) != state["counters"]["collects"]:
        return rows
    new_rows, previous_collects = [], 0
    for row in rows:
        num_collects = int(row["count/collects"])
        detectors = [
            detector_of(settings, scores[:n], squares[:n])
            for n in range(previous_collects + 1, num_collects + 1)
        ]
        means = [detector.means[-1] for detector in detectors if detector.means]
        new_row = {
            name: value for name, value in row.items() if name not in ("rolling_score", "collapsed")
        }
        new_row |= {"rolling_score": sum(means) / len(means)} if means else {}
        is_collapsed = detector_of(
            settings, scores[:num_collects], squares[:num_collects]
        ).is_collapsed
        new_rows.append(new_row | ({"collapsed": 1.0} if is_collapsed else {}))
        previous_collects = num_collects
    return new_rows


def collapse_update(rows: list[dict[str, Any]]) -> float:
    """Return the update after which a run with stop_on_collapse ends; infinity if none."""
    return next((row["update"] for row in rows if row.get("collapsed")), math.inf)


def starvation_update(rows: list[dict[str, Any]], settings: TrainConfig) -> float:
    """Return the last update before more than max_empty_collects empty collects; else infinity."""
    in_a_row = collects = empty = last = 0
    for row in rows:
        new, new_empty = row["count/collects"] - collects, row["count/empty_collects"] - empty
        collects, empty = row["count/collects"], row["count/empty_collects"]
        in_a_row += new_empty
        if in_a_row > settings.max_empty_collects:
            return last
        if new > new_empty:
            in_a_row = 0
        last = row["update"]
    return math.inf
