"""Record where a run was trained: devices, packages and git commit, beside its timings in work/.

The record is in no output of DVC, since equal runs on other machines must give equal bytes.
"""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dopsd.core.files import object_in, write_json
from dopsd.core.machine import device_name, package_version
from dopsd.core.progress import log

if TYPE_CHECKING:
    from accelerate import Accelerator

MACHINE = "machine.json"
UNCOUNTED = (":!params.yaml", ":!dvc.lock")  # pathspecs of git
PACKAGES = ("dopsd", "torch", "transformers", "peft", "accelerate", "numpy")


def write_machine(scratch: Path, accelerator: Accelerator, update: int, devices: list[str]) -> None:
    """Add this machine to the record of a training folder, if it is not the last one there."""
    if not accelerator.is_main_process:
        return
    parts: list[dict[str, Any]] = object_in(scratch / MACHINE).get("parts", []) if update else []
    if fault := commit_fault():
        log(f"train: {fault}")
    part = {"devices": devices, "packages": versions(), "commit": _commit()}
    if not parts or {key: parts[-1].get(key) for key in part} != part:
        write_json(scratch / MACHINE, {"parts": [*parts, {"after_update": update, **part}]})


def device_and_threads(device: torch.device) -> str:
    """Return the name of a GPU, or of this machine's processor with the number of threads."""
    name, threads = device_name(device), torch.get_num_threads()
    if device.type == "cuda":
        return name
    return f"{name.removesuffix(')')}, {threads} thread{'' if threads == 1 else 's'})"


def versions() -> dict[str, str]:
    """Return the versions of Python and the main packages."""
    packages = {package: package_version(package) for package in PACKAGES}
    return {"python": platform.python_version()} | packages


def _commit() -> str | None:
    """Return the git commit of the working directory, with `+` if tracked files differ from it.

    Settings and lock do not count: every new run changes them, and its record has the settings.
    """
    head = _git("rev-parse", "--verify", "-q", "HEAD")[0]
    return head and head + (
        "+" if _git("status", "--porcelain", "-uno", "--", *UNCOUNTED)[0] else ""
    )


def commit_fault() -> str | None:
    """Return why git does not tell the commit of a repository that is here; None: it may."""
    fault = _git("rev-parse", "--verify", "-q", "HEAD")[1]
    is_here = any((folder / ".git").exists() for folder in (Path.cwd(), *Path.cwd().parents))
    if not is_here or not fault:
        return None
    trust = '; if you trust it: `git config --global --add safe.directory "$PWD"`'
    advice = trust if "dubious ownership" in fault else ""
    return f"{fault}, so the commit is not recorded{advice}"


def _git(*words: str) -> tuple[str | None, str | None]:
    """Return what git says, and its first complaint."""
    try:
        process = subprocess.run(
            ["git", "--no-optional-locks", *words],
            capture_output=True,
            text=True,
            check=False,
            encoding="utf-8",
            env=os.environ | {"LC_ALL": "C"},
        )
    except OSError:
        return None, "git is not installed"
    complaint = process.stderr.partition("\n")[0].removeprefix("fatal: ")
    return process.stdout.strip() or None, f"git: {complaint}" if complaint else None
