"""Metrics that d_opsd logs."""

from __future__ import annotations

from dopsd.algorithms.common.metrics import DISTILLATION

METRICS = DISTILLATION
