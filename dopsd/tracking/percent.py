"""Shares in percent, for MLflow's charts: they cannot compute one number from another."""

from __future__ import annotations

SUFFIX = "_percent"
SHOWN_IN_PERCENT = (
    "best/test_accuracy",
    "best/test_difference",
    "eval/accuracy",
    "train/first_attempt_score",
)


def percent_name(metric: str) -> str:
    """Return the name of the metric that has a share in percent."""
    return metric + SUFFIX


def with_percent(metrics: dict[str, float]) -> dict[str, float]:
    """Return metrics, and those of SHOWN_IN_PERCENT in percent as well.

    Args:
        metrics: values by name; shares are between 0 and 1.
    """
    return metrics | {
        percent_name(name): 100 * value
        for name, value in metrics.items()
        if name in SHOWN_IN_PERCENT
    }
