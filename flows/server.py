"""Reach Prefect's server: a flow outlives its server, and reports once the server is back."""

import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType
from prefect.exceptions import PrefectException
from prefect.settings import get_current_settings

from dopsd.core.environment import LOOPBACK
from dopsd.tracking.client import SERVICES, start_command

LOOK_EVERY = 2.0  # seconds
WARN_EVERY = 60.0  # seconds
TAKEN = (StateType.CANCELLING, StateType.CANCELLED, StateType.CRASHED)
ENV = SERVICES.with_name("env")  # written by `make up`, with the addresses of its servers
PORTS = {"http": 80, "https": 443}


def is_reachable() -> bool:
    """Tell whether the server's port answers; a call to an absent server blocks for minutes."""
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


def start_advice() -> str:
    """Say how to start the server where its address points to."""
    url = urlsplit(str(get_current_settings().api.url or ""))
    if url.hostname and url.hostname not in LOOPBACK:
        return f"start it on {url.hostname}"
    if (start := start_command("Prefect")) == "make up":
        return f"run `{start}` and `source {ENV}`"
    return f"run `{start} --port {url.port}`" if url.port else f"run `{start}`"


@contextmanager
def passing_failures() -> Iterator[None]:
    """Ignore a request that the server does not answer, or answers with its own failure (5xx)."""
    try:
        yield
    except httpx.TransportError:
        pass
    except httpx.HTTPStatusError as error:
        if not error.response.is_server_error:
            raise


def wait(log: logging.Logger | logging.LoggerAdapter[logging.Logger]) -> None:
    """Wait until the server is reachable; a task that ended without it would show as running."""
    warned_at = 0.0
    while not is_reachable():
        if time.monotonic() - warned_at > WARN_EVERY:
            warned_at = time.monotonic()
            log.warning(
                "Prefect's server does not answer; work is saved on disk, and the flow continues"
                f" once the server is back; {start_advice()}"
            )
        time.sleep(LOOK_EVERY)


def is_taken_away() -> bool:
    """Tell whether this process' flow run was cancelled, or given up as lost, on the server.

    A worker that is gone, or was away, cannot tell the flow. A server that does not answer takes
    nothing away.
    """
    run_id = os.environ.get("PREFECT__FLOW_RUN_ID")
    if not run_id or not is_reachable():
        return False
    with suppress(httpx.HTTPError, PrefectException), get_client(sync_client=True) as client:
        state = client.read_flow_run(UUID(run_id)).state
        return state is not None and state.type in TAKEN
    return False
