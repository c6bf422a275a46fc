"""Processes that are there at once: forked from a server that has the trainer loaded."""

import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest
from ports import free_port
from torch.distributed.launcher.api import LaunchConfig

BOUND = 300  # seconds until a test gives up; nothing here needs as long
CONTEXT = multiprocessing.get_context("forkserver")
PRELOAD = ["accelerate", "dopsd.algorithms.d_opsd.algorithm", "dopsd.config.params"]
PRELOAD += ["dopsd.models.llada.architecture", "dopsd.models.llm_policy", "peft.tuners.lora"]
PRELOAD += ["dopsd.pipeline.stages.train", "dopsd.training.trainer"]
CONTEXT.set_forkserver_preload([*PRELOAD, "transformers.conversion_mapping"])
with_a_launcher = pytest.mark.skipif(
    "shutdown_timeout" not in LaunchConfig.__dataclass_fields__,
    reason="launch.processes needs torch 2.13: earlier launchers kill processes that are saving",
)


def start(function: Callable[..., object], *arguments: object, **env: str) -> ForkServerProcess:
    """Run a function in a process in this working directory; its output goes to output-RANK."""
    output = Path.cwd() / f"output-{env.get('RANK', '0')}"
    environment = {**os.environ, **env}
    process = CONTEXT.Process(target=_begin, args=(output, environment, function, *arguments))
    process.start()
    return process


def start_ranks(
    count: int, function: Callable[..., object], *arguments: object
) -> list[ForkServerProcess]:
    """As torchrun does: the environment tells each process its rank."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(count)}
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]
    return [start(function, *arguments, **shared, **rank) for rank in ranks]


def statuses(processes: list[ForkServerProcess]) -> list[int | None]:
    """How they end; one that does not is killed and has none."""
    for process in processes:
        process.join(BOUND)
    found = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    return found


def output(rank: int = 0) -> str:
    return Path(f"output-{rank}").read_text()


def script(code: str, *paths: str) -> None:
    """Run code as a new Python would, with folders before its path: dopsd is loaded again."""
    for name in [name for name in sys.modules if name.split(".")[0] in ("dopsd", "flows")]:
        del sys.modules[name]
    sys.path[:0] = paths
    exec(code, {"__name__": "__main__"})


def command(*words: str) -> None:
    """`dopsd <words>`."""
    from dopsd.cli.main import main

    sys.exit(main(words))


def _begin(
    output: Path, environment: dict[str, str], function: Callable[..., object], *arguments: object
) -> None:
    import torch

    with output.open("wb") as written:
        for stream in (1, 2):
            os.dup2(written.fileno(), stream)
    os.chdir(output.parent)
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(1)
    function(*arguments)
