"""`dopsd repro` and `dopsd commit`: DVC's commands of the same name, one writer per workspace.

The first signal to this process (SIGINT, SIGTERM, SIGHUP, SIGUSR1) stops DVC's stage: training
saves, DVC waits for it, and this process ends after both. Only a second Ctrl-C at a terminal, some
seconds later, ends them without saving. Output and exit code are DVC's, but a line names a disk
that failed, with exit code 75. DVC cannot ask questions here, so `commit` needs `--force` where DVC
would ask.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

from dopsd.config import params_file
from dopsd.config.consistency import matrix_notes
from dopsd.config.loading import load_params
from dopsd.config.params import Params
from dopsd.config.profiles import HARDWARE, PRESET
from dopsd.core.errors import TEMPORARY, Code, DopsdError
from dopsd.core.extras import require
from dopsd.core.files import ASIDE, WORK, write_atomically
from dopsd.core.interrupts import MEANT, handling, is_at_terminal
from dopsd.core.paths import BASES, RunKey
from dopsd.core.processes import adopt_orphans, shell_status, signal_group, wait_for_orphans
from dopsd.core.progress import log
from dopsd.pipeline.dvc.leftovers import remove_copies
from dopsd.pipeline.dvc.patient import PARENT
from dopsd.pipeline.recipes import FILE, PARAMS, write_recipes
from dopsd.tasks.custom.verifiers.config import EXTERNAL
from dopsd.training.start import STARTS, remove_dead_links

SHOWING = {"--dry", "-h", "--help"}  # options of `dvc repro` with which it runs nothing
STOP_EVERY = 5.0  # seconds between two requests to stop; training ignores repetitions


def _params() -> Params | None:
    """Return the settings; None where they cannot be read, which DVC's stages say better."""
    with suppress(DopsdError):
        return load_params()
    return None


def _add_sections() -> None:
    """Add the sections that the matrix needs to params.yaml, without which DVC would stop."""
    with suppress(DopsdError):
        if params_file.missing(load_params()):
            for line in params_file.params(None, PRESET, HARDWARE, [], PARAMS):
                log(f"{PARAMS}: {line}")


def _without_unsolved(params: Params) -> list[str]:
    """Say which pairs of the matrix make no run; return the other stages, if there are any such."""
    if not params.unsolved:
        return []
    for note in matrix_notes(params):
        log(f"note: {note}")
    seeds = params.matrix.seeds
    without = {RunKey(*pair, seed).stage for pair in params.unsolved for seed in seeds}
    stages = ask_dvc("stage", "list", "--name-only").stdout.split()
    return [stage for stage in stages if stage.partition("@")[2] not in without]


class Writing:
    """Run DVC in a process group of its own, and pass signals on to it."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words, self.name = [*words], words[0]
        self.process: subprocess.Popen[bytes] | None = None
        self.stopped_at, self.number = 0.0, 0

    def run(self) -> int:
        """Wait for the workspace, run DVC, wait for all its processes; return DVC's exit code."""
        adopt_orphans()
        from dopsd.pipeline.dvc.writer_lock import WriterLock  # needs the extra `pipeline`

        signal.signal(signal.SIGTSTP, self._go_on)
        with handling(self._note), WriterLock(self.name, lost=self._lose):
            forget_the_dead()
            remove_copies()
            if FILE.name in Path("dvc.yaml").read_text(encoding="utf-8"):
                write_recipes()
                _add_sections()
                for folder in (BASES, STARTS):  # dependencies, also where nothing is in them
                    folder.mkdir(parents=True, exist_ok=True)
                remove_dead_links()
            params = _params() if self._is_whole else None
            if params:
                from dopsd.pipeline.dvc.disk_room import require_room  # slow to import

                require_room(params)
                self.words += _without_unsolved(params)
            keep_lockfile()
            status = self._run_dvc()
            is_odd = status not in (0, TEMPORARY) and not self.stopped_at  # no disk failed
            if is_odd and set_aside_damaged(self.name):
                status = self._run_dvc()
            if status:
                remove_copies()
            if params and not status and not self.stopped_at:
                from dopsd.pipeline.dvc.pruning import remove_unwanted  # slow to import

                for run in params.runs:
                    remove_unwanted(params, run.key)
        return shell_status(status)

    @property
    def _is_whole(self) -> bool:
        """Whether DVC is asked to run all stages."""
        options = {*self.words[1:]}
        has_targets = any(not word.startswith("-") for word in options)
        return self.name == "repro" and not has_targets and options.isdisjoint(SHOWING)

    def _run_dvc(self) -> int:
        """Run DVC, and return its exit code once all its processes have ended."""
        self._refuse_to_start()
        command = [
            sys.executable,
            "-m",
            "dopsd.pipeline.dvc.patient",
            "--wait-for-lock",
            *self.words,
        ]
        env = os.environ | {PARENT: str(os.getpid())}
        self.process = process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, process_group=0, env=env
        )
        status = self._wait(process)
        wait_for_orphans()
        return status

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        """Wait for DVC and return its exit code.

        A request to stop is repeated, because DVC loses one that comes between two stages.
        """
        while True:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(STOP_EVERY)
            if self.stopped_at:
                self.stop()

    def _note(self, number: int, _: FrameType | None) -> None:
        if self.process is None:
            self.number = number
            self._refuse_to_start()
        if not self.stopped_at:
            self.stopped_at = time.monotonic()
            self.stop()
        elif (
            number == signal.SIGINT
            and time.monotonic() - self.stopped_at >= MEANT
            and is_at_terminal()
        ):
            self.stop(signal.SIGKILL)

    def _refuse_to_start(self) -> None:
        """End before DVC starts if a signal asked for it; a library may have caught this once."""
        if self.number:
            raise Code.INTERRUPTED.error(
                f"{self.name}: {signal.Signals(self.number).name} before DVC started; nothing"
                " changed",
                128 + self.number,
            )

    def _lose(self) -> None:
        """Stop, because another writer took over."""
        self.stopped_at = self.stopped_at or time.monotonic()
        self.stop()

    def _go_on(self, *_: object) -> None:
        """Ignore Ctrl-Z: a suspended writer would lose the workspace while its DVC goes on."""
        log(f"{self.name}: not suspended; stop with Ctrl-C, and the same command continues")

    def stop(self, number: int = signal.SIGINT) -> None:
        """Signal DVC and its stage, as Ctrl-C does: DVC waits for its stage and starts no other."""
        if self.process:
            signal_group(self.process.pid, number)


def run(words: Sequence[str]) -> int:
    """Run a DVC command as the workspace's one writer, and return DVC's exit code."""
    require(words[0], "dvc")
    if not Path("dvc.yaml").is_file():
        raise Code.NOT_A_PROJECT.error(
            f"{words[0]}: dvc.yaml: no such file; run this in the project's folder"
        )
    for path in Path(EXTERNAL).rglob("*"):
        if not path.is_dir() and not path.is_file():
            kind = "a link to nothing" if path.is_symlink() else "neither a file nor a folder"
            raise Code.PATH.error(
                f"{words[0]}: {path}: is {kind}, and DVC would wait or fail; remove it"
            )
    return Writing(words).run()


RWLOCK = Path(".dvc/tmp/rwlock")  # DVC's list of processes that read and write each path
LOCKFILE = Path("dvc.lock")
KEPT_LOCKFILE = WORK / LOCKFILE.name  # as it was before the newest command


def forget_the_dead() -> None:
    """Remove DVC's list of processes, unless one of them is a DVC that runs here.

    On another machine the id of a killed DVC may belong to a process that DVC would wait for. DVC
    also refuses to run with a list that was cut off.
    """
    from dopsd.pipeline.dvc.writer_lock import is_running

    if RWLOCK.is_file():
        numbers = re.findall(r'"pid": (\d+)', RWLOCK.read_text(encoding="utf-8"))
        if not any(is_running(int(number), "dvc") for number in numbers):
            RWLOCK.unlink()


def keep_lockfile() -> None:
    """Copy dvc.lock to work/: DVC writes it in place, and a kill or a full disk cuts it off."""
    if LOCKFILE.is_file() and _is_lockfile(content := LOCKFILE.read_bytes()):
        write_atomically(KEPT_LOCKFILE, content.decode())


def set_aside_damaged(name: str) -> bool:
    """Put back a dvc.lock that was cut off, and clean DVC's run cache.

    What was cut off moves to work/aside. The copy from before the command takes its place, and DVC
    finds in its run cache what the command finished. There it fails at a folder without entries,
    which a kill leaves before the first entry is written.
    """
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    try:
        cache = Path(Repo().stage_cache.cache_dir)
    except DvcException as error:  # no repository of DVC, or of git
        raise Code.NOT_A_PROJECT.error(
            f"{name}: {str(error).splitlines()[0]}; in the project's folder, restore .git and .dvc"
            " or run `git init` and `dvc init`, then the same command"
        ) from error
    content = LOCKFILE.read_bytes() if LOCKFILE.is_file() else None
    is_any = content is not None and b"<<<<<<<" not in content and not _is_lockfile(content)
    if is_any:
        ASIDE.mkdir(parents=True, exist_ok=True)
        shutil.move(LOCKFILE, ASIDE / LOCKFILE.name)
        if KEPT_LOCKFILE.is_file():
            write_atomically(LOCKFILE, KEPT_LOCKFILE.read_text(encoding="utf-8"))
        log(f"{name}: {LOCKFILE} was cut off; moved to {ASIDE}, running again with DVC's run cache")
    for folder in cache.glob("??/*"):
        if not any(folder.iterdir()):
            folder.rmdir()
            is_any = True
    return is_any


def _is_lockfile(content: bytes) -> bool:
    """Tell whether DVC can read a dvc.lock."""
    from dvc.schema import COMPILED_LOCKFILE_SCHEMA
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError
    from voluptuous import Invalid

    try:
        COMPILED_LOCKFILE_SCHEMA(YAML(typ="safe").load(content))
    except (YAMLError, Invalid, ValueError):
        return False
    return True


def remote_problem(folder: Path) -> str:
    """Return why DVC's default remote cannot share results; empty if it can."""
    name = ask_dvc("config", "core.remote", folder=folder).stdout.strip()
    if not name:
        return (
            "DVC has no default remote here, so results could not reach the other machines; run"
            " `dvc remote add --local --default store ADDRESS` with an address that all share"
        )
    address = ask_dvc("config", f"remote.{name}.url", folder=folder).stdout.strip()
    if address.startswith(("http://", "https://")):
        return (
            f"DVC's default remote {name} is {address}, and DVC shares results by their settings"
            " (its run cache) at no http address; use a shared folder, S3 or ssh"
        )
    return ""


def ask_dvc(*words: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command of DVC that only answers, in a folder or here, and return what it says."""
    return subprocess.run(
        [sys.executable, "-m", "dvc", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        encoding="utf-8",
    )
