"""`dopsd launch --at-once N repro`: runs of the matrix side by side, each on GPUs of its own.

DVC has one writer in a folder. So each run gets a copy of this one, work/array/TASK-METHOD-SEED,
which shares its DVC cache. `collect` brings the results back. Slurm's array has the same folders.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO

from ruamel.yaml import YAML

from dopsd.config.loading import load_params
from dopsd.config.params import Params
from dopsd.core.errors import Code, DopsdError
from dopsd.core.extras import require
from dopsd.core.files import WORK
from dopsd.core.interrupts import handling
from dopsd.core.paths import RunKey
from dopsd.core.progress import log
from dopsd.pipeline.dvc.command import LOCKFILE, ask_dvc
from dopsd.pipeline.dvc.previous import keep

ARRAY = WORK / "array"
FINISHED = WORK / "finished"  # in a copy
OWN = {".git", ".venv", ".dvc", "models", "mlartifacts", "mlruns", "runs", "site", "work"}
CONFIG = ("config", "config.local")  # of DVC
YAML_1_2 = YAML()
TOLD_EVERY = 60.0  # seconds between two lines about each run
LOOK_EVERY = 0.5


def gpus() -> list[str]:
    """List the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them.

    Does not import torch.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name.strip() and name.strip() != "-1"]
    if shutil.which("nvidia-smi") is None:
        return []
    output = subprocess.run(
        ["nvidia-smi", "-L"], capture_output=True, text=True, check=False, encoding="utf-8"
    ).stdout
    return [
        str(i)
        for i, line in enumerate(line for line in output.splitlines() if line.startswith("GPU "))
    ]


def collect(folder: Path) -> None:
    """Bring the results of a finished run back from its copy of this folder, and remove the copy.

    Nothing is computed. If code or settings have changed since, `dvc status` shows it.

    Args:
        folder: named TASK-METHOD-SEED; the caller is the one writer of this folder.
    """
    keys = {run.key.stage: run.key for run in load_params().runs}
    if folder.name in keys and (replaced := keep(keys[folder.name])):
        log(f"collect: {replaced}")
    lock = YAML_1_2.load(LOCKFILE) if LOCKFILE.exists() else {"schema": "2.0", "stages": {}}
    entries = YAML_1_2.load(folder / LOCKFILE)["stages"]
    stages = {name: entries[name] for name in entries if name.endswith(f"@{folder.name}")}
    lock["stages"].update(stages)
    tmp = LOCKFILE.with_name(f".{LOCKFILE.name}.tmp")
    YAML_1_2.dump(lock, tmp)
    tmp.rename(LOCKFILE)
    done = ask_dvc("--wait-for-lock", "checkout", "--quiet", "--force", *stages)
    if done.returncode:
        raise DopsdError(f"collect: {folder}: {done.stderr.strip()}", code=Code.NO_RESULTS)
    for path in [
        *folder.glob("work/train-*"),
        *folder.glob("work/eval/*"),
        *folder.glob("work/record/*"),
        *folder.glob("runs/*/*/*/train/step-*"),  # DVC has their digests alone
    ]:
        target = path.relative_to(folder)  # longer runs and `dopsd publish` continue from these
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            path.rename(target)
    if (folder / ".git").exists():  # of Slurm's array
        subprocess.run(["git", "worktree", "remove", "--force", folder], check=True)
    else:
        shutil.rmtree(folder)
    log(f"collect: {folder}: collected {len(stages)} stages")


def copied(key: RunKey) -> Path:
    """Return the copy of this folder for a run, with today's settings; its progress stays."""
    folder = ARRAY / key.stage
    is_new = not folder.exists()
    for path in Path().iterdir():
        is_own = path.name in OWN or path.suffix == ".db" or (path == LOCKFILE and not is_new)
        if is_own:
            continue
        (folder / path.parent).mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            shutil.copytree(path, folder / path, symlinks=True, dirs_exist_ok=True)
        else:
            shutil.copy2(path, folder / path)
    if Path("models").is_dir() and not (folder / "models").exists():
        (folder / "models").symlink_to(Path("models").absolute())
    (folder / ".dvc").mkdir(exist_ok=True)
    for name in CONFIG:
        if (Path(".dvc") / name).exists():
            shutil.copy2(Path(".dvc") / name, folder / ".dvc" / name)
    cache = ask_dvc("cache", "dir").stdout.strip()
    ask_dvc("config", "--local", "core.no_scm", "true", folder=folder)
    ask_dvc("cache", "dir", "--local", str(Path(cache).absolute()), folder=folder)
    return folder


@dataclass
class Running:
    """A run at work in its copy."""

    key: RunKey
    devices: list[str]
    process: subprocess.Popen[bytes]
    log: IO[bytes]

    @property
    def last_line(self) -> str:
        """What its log said last."""
        lines = Path(self.log.name).read_text(encoding="utf-8", errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "starts")


class SideBySide:
    """Start runs while devices are free, wait for all, and collect those that have ended well."""

    def __init__(self, params: Params, count: int) -> None:
        self.processes = params.launch.processes
        known = gpus()
        if known and len(known) < count * self.processes:
            raise DopsdError(
                f"launch: --at-once {count}: {count} runs of {self.processes} processes need"
                f" {count * self.processes} GPUs, and this machine shows {len(known)}",
                code=Code.USAGE,
            )
        names = known or [""] * count * self.processes
        parts = range(0, count * self.processes, self.processes)
        self.free = [names[first : first + self.processes] for first in parts]
        self.threads = str(max(1, (os.cpu_count() or 1) // count // self.processes))
        self.running: list[Running] = []
        self.failed: list[RunKey] = []
        self.stopped_by = 0

    def run(self, keys: list[RunKey]) -> None:
        """Make these runs, the first ones first."""
        waiting, told = list(keys), time.monotonic()
        with handling(self._stop):
            while self.running or (waiting and not self.stopped_by):
                while waiting and self.free and not self.stopped_by:
                    self._start(waiting.pop(0))
                time.sleep(LOOK_EVERY)
                for run in [run for run in self.running if run.process.poll() is not None]:
                    self._end(run)
                if time.monotonic() - told >= TOLD_EVERY:
                    told = time.monotonic()
                    for run in self.running:
                        log(f"launch: {run.key}: {run.last_line}")

    def _start(self, key: RunKey) -> None:
        devices, folder = self.free.pop(0), copied(key)
        (folder / WORK).mkdir(exist_ok=True)
        env = {
            "OMP_NUM_THREADS": self.threads,
            "MLFLOW_TRACKING_URI": "sqlite:///../../../mlflow.db",
        }
        env |= os.environ | ({"CUDA_VISIBLE_DEVICES": ",".join(devices)} if any(devices) else {})
        output = (ARRAY / f"{key.stage}.log").open("ab")
        process = subprocess.Popen(
            [sys.executable, "-m", "dopsd", "repro", f"report@{key.stage}"],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        self.running.append(Running(key, devices, process, output))
        place = f"GPU {','.join(devices)}" if any(devices) else "the CPU"
        log(f"launch: {key}: begins on {place}; its log is {output.name}")

    def _end(self, run: Running) -> None:
        from dopsd.pipeline.dvc.writer_lock import WriterLock

        self.running.remove(run)
        self.free.append(run.devices)
        run.log.close()
        if run.process.returncode:
            self.failed.append(run.key)
            log(f"launch: {run.key}: ended with {run.process.returncode}: {run.last_line}")
            return
        with WriterLock("collect"):
            collect(ARRAY / run.key.stage)

    def _stop(self, number: int, _: FrameType | None) -> None:
        """Ask all runs to save and end; they start again with the same command."""
        self.stopped_by = number
        for run in self.running:
            run.process.send_signal(signal.SIGTERM)


def reproduce(count: int) -> int:
    """Make the missing runs of the matrix side by side, then all other stages here.

    Returns:
        An exit code.

    Raises:
        DopsdError: if the machine has too few GPUs, or a signal came.
    """
    require("launch", "dvc")
    from dopsd.pipeline.disk_model import missing_runs, require_room
    from dopsd.pipeline.dvc import command

    params = load_params()
    side_by_side = SideBySide(params, count)
    missing = {run.key for run in missing_runs(params)}
    keys = [run.key for run in params.runs if run.key in missing or not run.key.is_tested]
    if len(keys) > 1:
        require_room(params)
        stages = ask_dvc("stage", "list", "--name-only").stdout.split()
        per_run = tuple(f"@{run.key.stage}" for run in params.runs)
        if status := command.run(["repro", *(s for s in stages if not s.endswith(per_run))]):
            return status
        side_by_side.run(keys)
    if number := side_by_side.stopped_by:
        raise DopsdError(
            f"launch: {signal.Signals(number).name}: all runs saved; the same command continues",
            128 + number,
            code=Code.INTERRUPTED,
        )
    if side_by_side.failed:
        names = ", ".join(map(str, side_by_side.failed))
        log(f"launch: {names}: failed; their logs are in {ARRAY}, and the same command continues")
        return 1
    return command.run(["repro"])
