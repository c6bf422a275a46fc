"""Wait for what the other processes of an evaluation write."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from dopsd.core.error_codes import Code
from dopsd.core.errors import TEMPORARY, DopsdError

if TYPE_CHECKING:
    from collections.abc import Callable

LOOK_EVERY = 0.5  # seconds


def wait_for_others(left: Callable[[], int], timeout: float) -> None:
    """Wait until nothing is left that other processes have to write.

    Args:
        left: returns how much is left.
        timeout: launch.timeout, the seconds in which something must come.

    Raises:
        DopsdError: if nothing came for so long.
    """
    number, since = left(), time.monotonic()
    while number:
        time.sleep(LOOK_EVERY)
        if (now := left()) != number:
            number, since = now, time.monotonic()
        elif time.monotonic() - since > timeout:
            raise DopsdError(
                f"evaluate: no other process has written anything for {timeout:.0f} s, and"
                f" {number} answers or reports are missing; what is there is kept, and the same"
                " command continues. launch.timeout says how long to wait",
                TEMPORARY,
                code=Code.PROCESS_LOST,
            )
