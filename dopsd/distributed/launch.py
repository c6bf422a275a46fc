"""Several processes of one command on this machine, one a GPU, through torch's elastic launcher
(what torchrun uses).
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dopsd.core.environment import DVC_PID
from dopsd.core.errors import DopsdError
from dopsd.core.interrupts import handling
from dopsd.core.progress import log

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

LAUNCHER = "DOPSD_LAUNCHER"  # in the environment of the processes that were launched here
GUARD = "DOPSD_GUARD"  # in the environment of what a flow runs
DVC_STAGE = "DVC_STAGE"  # in the environment of what DVC runs
SAVING = 1800  # seconds
PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux' prctl


def check_gpus(processes: int) -> None:
    """Refuse more processes than GPUs; without any, all share the CPU."""
    import torch

    if torch.cuda.is_available() and torch.cuda.device_count() < processes:
        raise DopsdError(
            f"launch.processes: {processes} processes, but {torch.cuda.device_count()} GPUs; set it"
            " to as many"
        )


def end_with_parent() -> None:
    """Where a launcher, DVC or a flow's guard is killed, what it started gets SIGTERM: it saves,
    and does not hold its GPUs.
    """
    if not {LAUNCHER, DVC_STAGE, GUARD} & os.environ.keys() or sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGTERM)
    if (
        DVC_STAGE in os.environ and DVC_PID in os.environ and not _is_alive(os.environ[DVC_PID])
    ):  # killed before it could be asked
        log("DVC was killed before this stage began; the same command continues")
        sys.exit(128 + signal.SIGTERM)


def _is_alive(process: str) -> bool:
    """Whether a process of this number runs; one that has ended stays until its parent has asked
    for its status.
    """
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in (
            "Z",
            "X",
        )
    except FileNotFoundError:
        return False


def accept_signals() -> None:
    """Let SIGTERM end this process, though whoever started DVC made DVC, and so this process,
    ignore it.
    """
    if signal.getsignal(signal.SIGTERM) == signal.SIG_IGN:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def is_started() -> bool:
    """Whether a launcher (this one, torchrun, accelerate, a cluster script) has started this
    process as one of several.
    """
    return "WORLD_SIZE" in os.environ


def launch(processes: int, words: Sequence[str]) -> int:
    """Run `dopsd <words>` in so many processes; the exit status of the first that failed, else 0.

    The first signal to this process goes to all of them; they have SAVING seconds to save. They end
    with it.
    """
    check_gpus(processes)
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    for name in [
        name for name in logging.root.manager.loggerDict if name.startswith("torch.distributed")
    ]:
        logging.getLogger(name).setLevel(logging.CRITICAL)  # the process that failed has said why
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    os.environ[LAUNCHER] = str(os.getpid())
    newer_options: dict[str, Any] = {"shutdown_timeout": SAVING, "signals_to_handle": "SIGQUIT"}
    if (
        not newer_options.keys() <= LaunchConfig.__dataclass_fields__.keys()
    ):  # it would kill processes that are still saving
        raise DopsdError(
            "launch.processes: the launcher of this torch gives processes no time to save; install"
            " torch 2.13 or newer"
        )
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        run_id=f"dopsd-{os.getpid()}",
        max_restarts=0,
        monitor_interval=0.5,
        **newer_options,
    )
    is_stopping = False

    def stop(number: int, _: FrameType | None) -> None:
        nonlocal is_stopping
        if not is_stopping:  # a second one would end the wait for those that save
            is_stopping = True
            raise SignalException(f"signal {number}", signal.Signals(number))

    try:
        with handling(stop):
            elastic_launch(config, sys.executable)("-m", "dopsd", *words)
    except ChildFailedError as error:
        status = error.get_first_failure()[1].exitcode
        return status if status >= 0 else 128 - status
    except SignalException as error:
        return 128 + int(error.sigval)
    return 0
