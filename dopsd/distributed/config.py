"""Section `launch`: the processes of a stage."""

from dopsd.core.settings import Count, Section


class LaunchConfig(Section):
    """Processes that a stage starts on this machine, one per GPU."""

    processes: Count = 1  # processes of train and of evaluations, one per GPU
    timeout: Count = 1800  # seconds to wait for another process, of the same or another machine
    shard: bool = False  # split the frozen base over the processes (FSDP2), to save GPU memory
