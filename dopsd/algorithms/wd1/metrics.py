"""Metrics that wd1 logs."""

from __future__ import annotations

from dopsd.algorithms.common.metrics import GROUPS, MASKED_LOGP

METRICS = GROUPS | {"logp": MASKED_LOGP}
