"""The launchers of all nodes meet before they start processes.

torch's launcher waits for the other nodes too, but heeds neither a signal nor a node that has
ended.
"""

from __future__ import annotations

import socket
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from dopsd.core.error_codes import Code
from dopsd.core.errors import TEMPORARY, DopsdError
from dopsd.distributed.nodes import exit_code

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator, Sequence

    from dopsd.distributed.nodes import Nodes


@contextmanager
def meeting(
    nodes: Nodes, others: Sequence[subprocess.Popen[bytes]], timeout: int
) -> Iterator[None]:
    """Wait until all nodes have met, and keep the port of the first open inside.

    Args:
        nodes: all nodes of the stage.
        others: what `start_others` returned.
        timeout: seconds that the nodes have.

    Raises:
        DopsdError: if another node ends, or the time does.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    host, _, port = nodes.endpoint.rpartition(":")
    end = time.monotonic() + timeout

    def wait(has_happened: Callable[[], bool]) -> None:
        while not has_happened():
            for i, process in enumerate(others, 1):
                if process.poll() is not None:
                    raise _ended(nodes.hosts[i] if nodes.hosts else f"node {i}", process)
            if time.monotonic() > end:
                raise unreachable(nodes.endpoint, timeout)
            time.sleep(0.2)

    is_first = nodes.index == 0
    wait(lambda: is_first or _is_open(host, int(port)))
    store = TCPStore(host, int(port), is_master=is_first, wait_for_workers=False, multi_tenant=True)
    store.set(f"met/{nodes.index}", "")
    wait(lambda: store.check([f"met/{i}" for i in range(nodes.count)]))
    yield


def _is_open(host: str, port: int) -> bool:
    """Return whether a connection to the port succeeds."""
    with suppress(OSError), socket.create_connection((host, port), timeout=5):
        return True
    return False


def _ended(name: str, process: subprocess.Popen[bytes]) -> DopsdError:
    """Return the error of a node that ended at its start."""
    code = exit_code(process)
    return DopsdError(
        f"launch: {name}: ended with exit code {code} before the nodes met; its last lines say why",
        code or TEMPORARY,
        code=Code.PROCESSES,
    )


def unreachable(endpoint: str, timeout: int) -> DopsdError:
    """Return the error of nodes that did not meet."""
    return DopsdError(
        f"launch: not all nodes met at {endpoint} within {timeout} s (launch.timeout), or one"
        " ended; start as many as --nodes says, and let the network pass this port",
        TEMPORARY,
        code=Code.PROCESSES,
    )
