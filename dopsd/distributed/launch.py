"""Start several processes of one command, one per GPU, on this machine or on several.

The processes start through torch's elastic launcher, which torchrun uses too.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from types import FrameType
from typing import TYPE_CHECKING, Any

from dopsd.core.errors import TEMPORARY, Code, DopsdError
from dopsd.core.interrupts import handling
from dopsd.core.processes import LAUNCHER, SAVING
from dopsd.core.progress import log
from dopsd.distributed.nodes import (
    Nodes,
    end_others,
    end_with_first_node,
    meeting,
    of_environment,
    unreachable,
)

if TYPE_CHECKING:
    from dopsd.distributed.config import LaunchConfig as Launching

# each configures torch's allocator on a GPU; older releases of torch know only the first
ALLOCATOR = {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF"}
ENDING = 10  # seconds that nodes have to end which did not all meet


def check_gpus(processes: int) -> None:
    """Refuse more processes than GPUs; on a machine without GPUs all processes share the CPU."""
    import torch

    if torch.cuda.is_available() and torch.cuda.device_count() < processes:
        raise Code.NO_GPU.error(
            f"launch.processes: {processes} processes, but {torch.cuda.device_count()} GPUs; set"
            " launch.processes to at most that number"
        )


def use_expandable_segments() -> None:
    """Let torch's allocator grow its segments, unless the user has configured the allocator.

    Passes over sequences of different lengths then leave no gaps that no later pass can use. Torch
    reads the variable when it is imported; processes that this one starts inherit it.
    """
    if not ALLOCATOR & os.environ.keys():
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"


def accept_signals() -> None:
    """Let SIGTERM end this process, even if DVC was started with SIGTERM ignored."""
    if signal.getsignal(signal.SIGTERM) == signal.SIG_IGN:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def is_started() -> bool:
    """Return whether a launcher started this process as one of several.

    The launcher may be dopsd, torchrun, accelerate or a cluster script.
    """
    return "WORLD_SIZE" in os.environ


def launch(settings: Launching, words: Sequence[str]) -> int:
    """Run `dopsd <words>` in several processes, on this machine or on every node.

    The first signal to this process goes to all of them; they have SAVING seconds to save. Later
    signals change nothing.

    Returns:
        The exit status of the first process that failed, else 0.
    """
    processes, nodes = settings.processes, of_environment()
    check_gpus(processes)
    from torch.distributed import DistError
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    for name in [
        name for name in logging.root.manager.loggerDict if name.startswith("torch.distributed")
    ]:
        # the process that failed has logged the reason
        logging.getLogger(name).setLevel(logging.CRITICAL)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    os.environ[LAUNCHER] = str(os.getpid())
    newer_options: dict[str, Any] = {"shutdown_timeout": SAVING, "signals_to_handle": "SIGQUIT"}
    # an older launcher would kill processes that are still saving
    if not newer_options.keys() <= LaunchConfig.__dataclass_fields__.keys():
        raise Code.PROCESSES.error(
            "launch.processes: this version of torch gives processes no time to save; install torch"
            " 2.13 or newer"
        )
    config = LaunchConfig(
        min_nodes=nodes.count if nodes else 1,
        max_nodes=nodes.count if nodes else 1,
        nproc_per_node=processes,
        max_restarts=0,
        monitor_interval=0.5,
        **_rendezvous(nodes, settings.timeout),
        **newer_options,
    )
    is_stopping = False

    def stop(number: int, _: FrameType | None) -> None:
        nonlocal is_stopping
        if not is_stopping:  # a second signal would end the wait for processes that save
            is_stopping = True
            raise SignalException(f"signal {number}", signal.Signals(number))

    status, others = 0, nodes.start_others(words) if nodes else []
    try:
        met = meeting(nodes, others, settings.timeout) if nodes else nullcontext()
        with handling(stop):
            end_with_first_node()
            with met:
                elastic_launch(config, sys.executable)("-m", "dopsd", *words)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        status = failure.exitcode
        if status < 0:  # killed, so that it could not say so itself
            log(f"process {rank} of the run was killed by {signal.Signals(-status).name}")
            status = 128 - status
    except SignalException as error:
        status = 128 + int(error.sigval)
    except (DistError, DopsdError) as error:
        end_others(others, TEMPORARY, ENDING)
        if isinstance(error, DopsdError):
            raise
        raise unreachable(config.rdzv_endpoint, settings.timeout, error) from error
    return end_others(others, status, SAVING)


def _rendezvous(nodes: Nodes | None, timeout: int) -> dict[str, Any]:
    """Return how torch's launchers of all nodes find each other.

    The static kind gives the first node the first ranks, and asks no store while processes run, so
    that a network cut of a minute ends no launcher.
    """
    if nodes is None:
        run_id = f"dopsd-{os.getpid()}"
        return {"rdzv_backend": "c10d", "rdzv_endpoint": "127.0.0.1:0", "run_id": run_id}
    configs = {"rank": nodes.index, "timeout": timeout}
    meeting = {"rdzv_backend": "static", "rdzv_endpoint": nodes.endpoint, "rdzv_configs": configs}
    return meeting | {"run_id": "dopsd"}
