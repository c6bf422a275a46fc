"""`dopsd rehearse --profile llada-8b-gsm8k`: estimate the cost, then run every stage in small.

The commands are those of the real run, in a folder of their own, with a tiny random model. So a
mistake in data, prompts, settings or disk shows in minutes on a laptop, before a GPU is paid for.
All that is made smaller is logged.
"""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import IO

from dopsd.config.layout import render
from dopsd.core.errors import Code, DopsdError
from dopsd.core.interrupts import SIGNALS, handling
from dopsd.core.processes import LAUNCHER
from dopsd.core.progress import log
from dopsd.pipeline.estimate.command import Planned, print_cost
from dopsd.pipeline.estimate.toy import PROBLEMS, SOURCE, build_toy, small

STAGES = ("prepare", "adapt", "evaluate_base", "train", "evaluate", "select", "test", "report")
DURATION = "about a minute on two CPU cores, and the download of data that are not here yet"
INTERRUPTED = "rehearse: interrupted; the same command starts again from the first stage"
GRACE = 60.0  # seconds that a stopped stage has to end


def rehearse(planned: Planned) -> None:
    """Print the full run's cost, what will run here and how long it takes, then run all stages."""
    raw, full = planned.read()
    processes = min(2, full.launch.processes)
    task, method = full.matrix.tasks[0], full.matrix.methods[0]
    base = Path(full.model_of(task).path)
    name = planned.profile or planned.path.stem
    if not full.pretrain.tasks:
        try:
            print_cost(full, planned.hardware)
        except DopsdError as error:  # the size of the base is not known
            log(f"rehearse: no estimate: {error}")
    with handling(_stop), unused_folder(name) as (folder, lock):
        log(f"rehearse: {planned.source(full)}, in {folder}")
        stages = [name for name in STAGES if name != "adapt" or full.adapt.tasks]
        log(f"  will run: {', '.join(stages)}; for {task}/{method}/0")
        log(f"  takes: {DURATION}, in {processes} process{'es' if processes > 1 else ''}")
        log(f"  replaced: {base} by a random model of its kind, of few layers")
        log(f"  reduced: 2 updates, {PROBLEMS} problems per split, short answers")
        log("  every answer is kept, since a random model has no correct ones")
        if full.adapt.tasks:
            from dopsd.models.a2d.convert import write_tiny

            log(f"  replaced: {full.adapt.source} by a random model of its kind, as adapt.source")
            write_tiny(Path(full.adapt.source or ""), folder / SOURCE)
        else:
            build_toy(base, folder / "toy")
        (folder / "params.yaml").write_text(render(small(raw, full, processes)), encoding="utf-8")
        for stage in stages:
            _run(stage, task, method, folder, lock)
    log("rehearse: every stage ran")


@contextmanager
def unused_folder(name: str) -> Iterator[tuple[Path, IO[str]]]:
    """Yield an empty folder that no other rehearsal uses, and its open lock file.

    The folder is work/rehearse/NAME, or NAME-2 and so on while others are in use.
    """
    root = Path("work") / "rehearse"
    root.mkdir(parents=True, exist_ok=True)
    for number in count(1):
        folder = root / (name if number == 1 else f"{name}-{number}")
        with (root / f"{folder.name}.lock").open("a", encoding="utf-8") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            if folder.exists():
                shutil.rmtree(folder)
            folder.mkdir()
            yield folder, lock
            return


def _stop(number: int, _: object) -> None:
    """End with one line at the first signal."""
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise Code.INTERRUPTED.error(INTERRUPTED, 128 + number)


def _run(stage: str, task: str, method: str, folder: Path, lock: IO[str]) -> None:
    """Run one stage as the pipeline does; its failure ends the rehearsal with its exit code.

    The stage ends with the rehearsal, even a killed one, and holds the folder's lock until then.
    """
    words = [sys.executable, "-m", "dopsd", stage, "--task", task]
    if stage not in ("prepare", "adapt", "evaluate_base"):
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
        raise Code.INTERRUPTED.error(INTERRUPTED, 130)
    if status:
        raise Code.STAGE_FAILED.error(
            f"rehearse: {stage} failed, as in the real run; fix the error above", status
        )
    log(f"rehearse: {stage} ran in {time.monotonic() - started:.0f} s")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
