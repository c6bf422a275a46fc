"""`dopsd rehearse --profile llada-8b-gsm8k`: run every stage in small, then estimate the cost.

The commands are those of the real run, in a folder of their own, with a tiny random LLaDA. So a
mistake in data, prompts, settings or disk shows in minutes on a laptop, before a GPU is paid for.
All that is made smaller is logged.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import IO, TYPE_CHECKING

from dopsd.config import profiles
from dopsd.config.loading import checked, read_yaml
from dopsd.config.params_file import render, with_changes
from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError
from dopsd.core.progress import log
from dopsd.distributed.launch import LAUNCHER
from dopsd.pipeline.task_sizes import facts
from dopsd.pipeline.toy import PROBLEMS, build_toy, small

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dopsd.config.params import Params
    from dopsd.models.denoiser import DenoiserConfig

STAGES = ("prepare", "evaluate_base", "train", "evaluate", "select", "test", "report")
INTERRUPTED = "rehearse: interrupted; the same command starts again from the first stage"
GRACE = 60.0  # seconds that a stopped stage has to end


def rehearse(
    profile: str | None, preset: str, hardware: str, changes: list[str], path: Path
) -> None:
    """Run all stages with two updates, then print time and memory at full size.

    Args:
        profile: Profile to rehearse; None takes the settings of `path`.
        preset: `reference` or `paper`, for llada-8b profiles.
        hardware: GPUs of the estimate: 1x80gb, 4x80gb or 1xh200.
        changes: KEY=VALUE changes of the settings.
        path: Settings file, usually params.yaml.

    Raises:
        DopsdError: if settings are wrong, or with the exit code of the stage that failed.
    """
    raw = profiles.resolve(profile, preset, hardware) if profile else read_yaml(path)
    profiles.gpus(hardware)
    full = checked(with_changes(raw, changes), "--set" if changes else path)
    processes, is_embedded = min(2, full.launch.processes), bool(full.pretrain.tasks)
    source = (
        str(path)
        if not profile
        else profile
        if is_embedded
        else f"{profile}, preset {preset}, {hardware}"
    )
    base = Path(full.model_of(full.matrix.tasks[0]).path)
    with _stopped_by_signals(), unused_folder(profile or path.stem) as (folder, lock):
        log(f"rehearse: {source}, in {folder}, {processes} process{'es' if processes > 1 else ''}")
        log(f"  replaced: {base} by a random LLaDA of 2 layers")
        log(f"  reduced: 2 updates, {PROBLEMS} problems per split, short answers")
        log("  every answer is kept, since a random model has no correct ones")
        build_toy(base, folder / "toy")
        (folder / "params.yaml").write_text(render(small(raw, full, processes)))
        for stage in STAGES:
            _run(stage, full.matrix.tasks[0], full.matrix.methods[0], folder, lock)
    log("rehearse: every stage ran")
    if not is_embedded:
        print_cost(full, hardware)


@contextmanager
def unused_folder(name: str) -> Iterator[tuple[Path, IO[str]]]:
    """Yield an empty folder that no other rehearsal uses, and its open lock file.

    The folder is work/rehearse/NAME, or NAME-2 and so on while others are in use.
    """
    root = Path("work") / "rehearse"
    root.mkdir(parents=True, exist_ok=True)
    for number in count(1):
        folder = root / (name if number == 1 else f"{name}-{number}")
        with (root / f"{folder.name}.lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            if folder.exists():
                shutil.rmtree(folder)
            folder.mkdir()
            yield folder, lock
            return


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """End with one line at the first SIGINT, SIGTERM or SIGHUP; `nohup` keeps SIGHUP ignored."""

    def stop(number: int, _: object) -> None:
        for signal_number in previous_handlers:
            signal.signal(signal_number, signal.SIG_IGN)
        raise DopsdError(INTERRUPTED, 128 + number, code=Code.INTERRUPTED)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    previous_handlers = {
        number: signal.signal(number, stop)
        for number in numbers
        if signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)


def print_cost(full: Params, hardware: str) -> None:
    """Print the estimated cost of the real run.

    The shape is that of the base if its config.json is here, else that of LLaDA-8B.

    Args:
        full: Settings of the real run.
        hardware: GPUs of the estimate.
    """
    from dopsd.pipeline.estimate import Facts, estimate, lines

    cost = estimate(
        full,
        _config(Path(full.model_of(full.matrix.tasks[0]).path)),
        Facts(**facts(full, full.matrix.tasks[0])),
    )
    output_lines = [
        "",
        "at full size, d-OPSD on one task and seed:",
        *lines(cost, full.launch.processes, profiles.gpus(hardware)),
    ]
    sys.stdout.write("\n".join(output_lines) + "\n")


def _config(base: Path) -> DenoiserConfig:
    from dopsd.models.llada.configuration import LladaConfig
    from dopsd.models.loading import read_config

    return read_config(base) if (base / "config.json").is_file() else LladaConfig()


def _run(stage: str, task: str, method: str, folder: Path, lock: IO[str]) -> None:
    """Run one stage as the pipeline does; its failure ends the rehearsal with its exit code.

    The stage ends with the rehearsal, even a killed one, and holds the folder's lock until then.
    """
    words = [sys.executable, "-m", "dopsd", stage, "--task", task]
    if stage not in ("prepare", "evaluate_base"):
        words += ["--method", method, "--seed", "0"]
    root = str(Path(__file__).parents[2])
    env = os.environ | {
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])),
        LAUNCHER: str(os.getpid()),
    }
    started = time.monotonic()
    process = subprocess.Popen(words, cwd=folder, env=env, pass_fds=[lock.fileno()])
    try:
        status = process.wait()
    except BaseException:
        _end(process)
        raise
    if status in (128 + signal.SIGINT, -signal.SIGINT):
        raise DopsdError(INTERRUPTED, 130, code=Code.INTERRUPTED)
    if status:
        raise DopsdError(
            f"rehearse: {stage} failed, as in the real run; fix the error above",
            status,
            code=Code.STAGE_FAILED,
        )
    log(f"rehearse: {stage} ran in {time.monotonic() - started:.0f} s")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
