"""Environment variables that processes of dopsd and DVC exchange, and what all of them need."""

from __future__ import annotations

import os

from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError

DVC_STAGE = "DVC_STAGE"  # set by DVC for its stages
DVC_PID = "DOPSD_DVC"  # set for stages: process id of the DVC that runs them
RESTORE_ONLY = "DOPSD_RESTORE_ONLY"  # set while results are collected: stages must not compute
LOOPBACK = ("127.0.0.1", "localhost", "::1")
NO_PROXY = ("no_proxy", "NO_PROXY")


def proxies() -> list[str]:
    """Return the names of the variables that send requests to a proxy."""
    return [
        name
        for name, value in os.environ.items()
        if value and name.lower().endswith("_proxy") and name not in NO_PROXY
    ]


def bypass_proxies(*hosts: str) -> None:
    """Keep requests to this machine out of proxies, here and in processes that this one starts.

    Args:
        hosts: More hosts that no proxy may stand before.
    """
    named = ",".join(os.environ.get(name, "") for name in NO_PROXY).replace(" ", "").split(",")
    if proxies():
        names = dict.fromkeys(filter(None, (*named, *LOOPBACK, *hosts)))
        os.environ.update(dict.fromkeys(NO_PROXY, "*" if "*" in names else ",".join(names)))


def refuse_while_collecting(stage: str) -> None:
    """Refuse to compute a stage while results of other machines are collected.

    Raises:
        DopsdError: if they are, and DVC did not find this one's.
    """
    if os.environ.get(RESTORE_ONLY) and stage not in ("prepare", "pretrain"):
        raise DopsdError(
            f"{stage}: no machine has sent a result of these settings, data and code to DVC's"
            " remote; run it there, with the same commit, or here with `dopsd repro`",
            code=Code.NO_RESULTS,
        )
