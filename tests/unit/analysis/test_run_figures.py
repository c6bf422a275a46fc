"""Figures of a run: plain names of metrics that exist, and units that are those of the glossary."""

from __future__ import annotations

from dopsd.algorithms.d_opsd.config import METRICS as DISTILLATION
from dopsd.analysis.figures import AGREEMENT, LABELS, SHARES
from dopsd.tracking.glossary import TRAINING


def test_every_name_in_a_figure_is_a_metric_with_that_unit():
    metrics = DISTILLATION | TRAINING
    units = {name: metrics[name].unit for name in LABELS}
    assert {name for name, unit in units.items() if unit == "share"} == set(SHARES)
    assert set(AGREEMENT) <= set(SHARES)
    for name, unit in units.items():
        assert (f"({unit})" in LABELS[name]) == (unit in ("tokens", "nats")), name
