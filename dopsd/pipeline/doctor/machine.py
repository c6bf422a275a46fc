"""Checks of this machine: Python, packages, GPUs, disk, and the files that params.yaml names."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from dopsd.config.named_files import missing_files, start_faults
from dopsd.core.errors import DopsdError
from dopsd.core.extras import advice as install

if TYPE_CHECKING:
    from dopsd.config.params import Params

CORE = ("torch", "transformers", "peft", "accelerate", "safetensors")
PLATFORM = ("datasets", "dvc", "mlflow", "prefect", "fastapi", "sqlalchemy")
KERNELS = (  # key of section model, value that needs a package, the package, its installation, else
    (
        "attention",
        "flash_attention_2",
        "flash_attn",
        "pip install flash-attn --no-build-isolation",
        "sdpa",
    ),
    ("kernels", "liger", "liger_kernel", install("liger_kernel"), "torch"),
)
ROOM = 2  # GB beside the checkpoints: answers, reports, databases
UNKNOWN = 60  # GB of a run of an 8B model


def python(_: Params) -> Iterator[Finding]:
    """Name the version of Python; an older one than pyproject.toml asks for imports nothing."""
    yield Finding("python", True, sys.version.split()[0])


def packages(_: Params) -> Iterator[Finding]:
    """Check that packages are installed in the versions that dopsd requires."""
    try:
        bounds = {
            requirement.name: requirement.specifier
            for requirement in map(Requirement, requires("dopsd") or [])
        }
    except PackageNotFoundError:  # dopsd runs from a source tree without installation
        bounds = {}
    for names, is_core in ((CORE, True), (PLATFORM, False)):
        for name in names:
            try:
                installed = version(name)
                is_fit = installed in bounds.get(name, SpecifierSet())
                advice = f"needs {bounds.get(name)}: pip install -c constraints.txt -e ."
                yield Finding(name, is_fit, installed, advice)
            except PackageNotFoundError:
                advice = (
                    "pip install -c constraints.txt -e ."
                    if is_core
                    else f"needed for the pipeline, not for training alone: {install(name)}"
                )
                yield Finding(name, False if is_core else None, "not installed", advice)


def visible_gpus(params: Params) -> Iterator[Finding]:
    """Check that there is a GPU for each process of launch.processes."""
    import torch

    processes = params.launch.processes
    if not torch.cuda.is_available():
        advice = "an 8B model takes months on a CPU; use `dopsd rehearse` here"
        yield Finding("gpu", True if params.pretrain.tasks else None, "none", advice)
        return
    count = torch.cuda.device_count()
    devices = ", ".join(
        f"{torch.cuda.get_device_name(i)} {torch.cuda.mem_get_info(i)[1] / 1e9:.0f} GB"
        for i in range(count)
    )
    yield Finding("gpu", count >= processes, devices, f"set launch.processes to {count}")


def kernels(params: Params) -> Iterator[Finding]:
    """Check that the packages of model.attention and model.kernels are installed if asked for."""
    for key, choice, package, command, without in KERNELS:
        chosen = {vars(params.model_of(task))[key] for task in params.matrix.tasks}
        is_installed = find_spec(package) is not None
        is_fit = is_installed or choice not in chosen
        is_or_not = "is" if is_installed else "is not"
        message = f"{', '.join(sorted(chosen))}; {package} {is_or_not} installed"
        yield Finding(key, is_fit, message, f"{command}, or set model.{key} to {without}")


def disk(params: Params) -> Iterator[Finding]:
    """Check that the disks have room for the runs of the matrix that are missing."""
    from dopsd.pipeline.dvc.disk_room import free_bytes, missing_bytes, missing_runs

    free, runs = free_bytes() / 1e9, len(missing_runs(params))
    try:
        required = ROOM + missing_bytes(params) / 1e9
    except DopsdError:  # the size of a base that is not here is not known
        required = ROOM if params.pretrain.tasks else UNKNOWN
    message = f"{free:.0f} GB free; for {runs} missing run{'s' * (runs != 1)} about"
    advice = "free some space, set checkpoints.keep=best_and_last, or make fewer runs"
    yield Finding("disk", free >= required, f"{message} {required:.0f} GB", advice)


def inputs(params: Params) -> Iterator[Finding]:
    """Check that the files and folders that params.yaml names exist."""
    missing = missing_files(params)
    advice = "download the missing files, or name others in params.yaml"
    yield Finding("files", not missing, "; ".join(missing) or "all exist", advice)


def user(_: Params) -> Iterator[Finding]:
    """Say what plain `dvc` needs where the user's id has no name; `dopsd` sets it."""
    if os.environ.get("USER") == str(os.getuid()):
        message = f"the user id {os.getuid()} has no name"
        yield Finding("user", None, message, f"for plain `dvc`: `export USER={os.getuid()}`")


def commit(_: Params) -> Iterator[Finding]:
    """Check that git tells the commit that records of runs have."""
    from dopsd.training.machine import commit_fault  # slow to import

    if fault := commit_fault():
        yield Finding("git", None, *fault.split(", so ", 1))


def starts(params: Params) -> Iterator[Finding]:
    """Check that runs can start from the checkpoints that train.start_from names, if any."""
    if any(run.train.start_from for run in params.runs):
        faults = start_faults(params)
        advice = "name another start, or change what the line names"
        yield Finding("starts", not faults, "; ".join(map(str, faults)) or "all fit", advice)


@dataclass(frozen=True)
class Finding:
    """Result of one check: a row of the table."""

    name: str  # first column
    # True: ready; False: not ready, `dopsd doctor` fails; None: may matter or not
    is_fit: bool | None
    message: str  # what the check saw
    advice: str = ""  # what to do; shown where it is not fit
