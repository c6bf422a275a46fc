"""Whether Prefect's server is there: a flow outlives its server, and tells it what happened when it
is back.
"""

from __future__ import annotations

import logging
import socket
import time
from urllib.parse import urlsplit

from prefect.settings import get_current_settings

LOOK_EVERY = 2.0  # seconds
SAY_EVERY = 60.0
PORTS = {"http": 80, "https": 443}


def is_there() -> bool:
    """Answered in a moment: a call to a server that is away blocks for minutes."""
    url = urlsplit(str(get_current_settings().api.url or ""))
    if not url.hostname:
        return True
    try:
        socket.create_connection(
            (url.hostname, url.port or PORTS[url.scheme]), timeout=LOOK_EVERY
        ).close()
    except OSError:
        return False
    return True


def wait(log: logging.Logger | logging.LoggerAdapter[logging.Logger]) -> None:
    """Until the server is there: a task that ended without one would be shown as running for
    ever.
    """
    warned_at = 0.0
    while not is_there():
        if time.monotonic() - warned_at > SAY_EVERY:
            warned_at = time.monotonic()
            log.warning(
                "Prefect's server is away; the work is on disk, and the flow goes on when `make up`"
                " brings it back"
            )
        time.sleep(LOOK_EVERY)
