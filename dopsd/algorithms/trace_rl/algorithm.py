"""TraceRL: policy gradient on the states that the sampler went through.

arXiv 2509.06949; the defaults are those of its published code for LLaDA. With other settings it is
CJ-GRPO or RLDF.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dopsd.algorithms.common.trace_gradient import TraceGradient

if TYPE_CHECKING:
    from dopsd.algorithms.common.base import AlgorithmContext
    from dopsd.algorithms.trace_rl.config import TraceRlConfig


def build(config: TraceRlConfig, context: AlgorithmContext) -> TraceGradient:
    """Return the algorithm with its settings and the run's context."""
    return TraceGradient("trace_rl", config, context)
