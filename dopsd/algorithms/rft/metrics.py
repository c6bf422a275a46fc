"""Metrics that rft logs."""

from __future__ import annotations

from dopsd.algorithms.common.metrics import MASKED_CROSS_ENTROPY

METRICS = {"cross_entropy": MASKED_CROSS_ENTROPY}
