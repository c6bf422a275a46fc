"""Settings of TraceRL."""

from __future__ import annotations

from dopsd.algorithms.common.trace_config import TraceConfig


class TraceRlConfig(TraceConfig):
    """Settings of TraceRL (arXiv 2509.06949, published code for LLaDA).

    With `shrink: 1` it is CJ-GRPO, and with `states`, `confident` and `reduction: token` RLDF.
    """
