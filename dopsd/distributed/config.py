"""Section `launch`: the processes of a stage."""

from __future__ import annotations

from dopsd.core.settings import Count, Section


class LaunchConfig(Section):
    """Processes that a stage starts on this machine, one a GPU; more than one goes through
    torchrun.
    """

    processes: Count = 1
    shard: bool = (
        False  # the frozen base in parts over the processes, where a card does not hold it whole
    )
