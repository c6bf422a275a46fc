"""Wait for events of other processes."""

import time
from collections.abc import Callable

DEADLINE = 600.0  # seconds without the event, on a loaded machine, after which a test gives up


def until(
    event: Callable[[], object],
    what: str = "the event",
    every: float = 0.1,
    seconds: float = DEADLINE,
) -> None:
    """Return when `event` is true; the clock only ends what hangs."""
    end = time.monotonic() + seconds
    while not event():
        assert time.monotonic() < end, f"{what}: did not happen within {seconds:.0f} s"
        time.sleep(every)
