"""`dopsd run --local`: the stages by `dopsd repro` and `dopsd publish`, in the view of `dopsd run`.

The commands write to a file in work/logs/. Signals go to the command: training saves and stops.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from dopsd.config.params import Params
from dopsd.config.params_file import way_back
from dopsd.core.errors import Code, DopsdError
from dopsd.core.files import read_json
from dopsd.core.interrupts import handling
from dopsd.core.paths import MLFLOW_PAGES
from dopsd.core.processes import LAUNCHER
from dopsd.core.progress import log
from dopsd.pipeline.dvc.writer_lock import WriterLock
from dopsd.pipeline.run import request as run_request
from dopsd.pipeline.run import view as run_view
from dopsd.pipeline.run.request import RunRequest
from dopsd.tracking.client import start_command

LOOK_EVERY = 0.5  # seconds
STARTED = re.compile(r"Running stage '(.+)':")
UNCHANGED = re.compile(r"Stage '(.+)' (?:didn't change, skipping|is cached - skipping run)")


def run_here(request: RunRequest, params: Params) -> None:
    """Write the settings, then run all stages in this folder and publish the results."""
    from dopsd.pipeline.dvc.disk_room import require_room  # slow to import

    require_room(params)
    with WriterLock("run"):
        changed = run_request.write(request)
    for line in changed + way_back(run_request.PARAMS):
        log(f"run: {line}")
    LocalRun(params).run()


class LoggedCommand:
    """A command of the run, and the file that it writes to."""

    def __init__(self, name: str) -> None:
        self.words = [sys.executable, "-m", "dopsd", name]
        self.path = run_view.new_log(name)
        self.read = 0  # bytes

    @property
    def lines(self) -> list[str]:
        """The complete lines that the command has written."""
        return _complete_lines(self.path.read_bytes())[0]

    def new_lines(self) -> list[str]:
        """Return the complete lines that were not returned before."""
        with self.path.open("rb") as output:
            output.seek(self.read)
            lines, size = _complete_lines(output.read())
        self.read += size
        return lines


def _complete_lines(output: bytes) -> tuple[list[str], int]:
    """Return the lines that have an end, and how many bytes they are."""
    size = output.rfind(b"\n") + 1
    return output[:size].decode(errors="replace").splitlines(), size


class LocalRun:
    """Run `dopsd repro` and `dopsd publish` one after the other, and show the stages."""

    def __init__(self, params: Params) -> None:
        self.params, self.started = params, time.time()
        self.keys = [run.key for run in params.runs]
        self.stages = {name: run_view.Stage(name) for name in run_view.expected_stages(params)}
        self.starts: dict[str, float] = {}
        self.stopped_by = 0
        self.process: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        """Run the commands."""
        names = ["repro", *(["publish"] if self.params.tracking.enabled else [])]
        footer = "Ctrl-C stops the run; training saves its last finished update"
        with handling(self._stop), self._ended(), run_view.Display(footer) as display:
            for name in names:
                command = self._run_command(name, display)
                if self._status():
                    break
            display.show(self._view(command), is_last=True)
        self._report_end(command)
        from dopsd.pipeline.results.summary import summary  # slow to import

        print(summary(self.params))

    @contextmanager
    def _ended(self) -> Iterator[None]:
        """Stop the command if an error ends the context, such as a terminal that is gone."""
        try:
            yield
        finally:
            if self.process and self.process.poll() is None:
                self.process.terminate()
                self.process.wait()  # training saves

    def _status(self) -> int:
        """Return the last command's exit code; that of a stopped run is not 0."""
        return (self.process.returncode if self.process else 0) or self.stopped_by

    def _run_command(self, name: str, display: run_view.Display) -> LoggedCommand:
        command = LoggedCommand(name)
        env = os.environ | {LAUNCHER: str(os.getpid()), "PYTHONUNBUFFERED": "1"}
        if name in self.stages:
            self._begin(name)
        with command.path.open("w", encoding="utf-8") as output:
            self.process = subprocess.Popen(command.words, stdout=output, stderr=output, env=env)
        if self.stopped_by:  # the signal came before there was a process
            self.process.send_signal(self.stopped_by)
        while self.process.poll() is None:
            display.show(self._view(command))
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(LOOK_EVERY)
        self._read(command)
        self._end_running(self._status())
        return command

    def _stop(self, number: int, _: FrameType | None) -> None:
        """Pass a signal on; a repeated Ctrl-C reaches the command from the terminal too."""
        self.stopped_by = self.stopped_by or number
        if self.process and self.process.poll() is None:
            self.process.send_signal(number)

    def _begin(self, name: str) -> None:
        self._end_running(0)
        self.stages.setdefault(name, run_view.Stage(name)).state = run_view.RUNNING
        self.starts[name] = time.time()

    def _end_running(self, status: int) -> None:
        """Mark the running stage as ended."""
        outcome = run_view.STOPPED if self.stopped_by else run_view.FAILED
        for stage in self.stages.values():
            if stage.state == run_view.RUNNING:
                stage.state = outcome if status else run_view.DONE
                stage.seconds = time.time() - self.starts[stage.name]
                stage.share, stage.note = None, ""

    def _read(self, command: LoggedCommand) -> None:
        """Bring the stages up to date with what DVC has written since the last look."""
        for line in command.new_lines():
            if match := STARTED.match(line):
                self._begin(run_view.dvc_stage(match[1], self.keys))
            elif match := UNCHANGED.match(line):
                self._end_running(0)
                name = run_view.dvc_stage(match[1], self.keys)
                stage = self.stages.setdefault(name, run_view.Stage(name))
                if stage.state != run_view.DONE:  # before DVC ran again
                    stage.state = run_view.CACHED

    def _view(self, command: LoggedCommand) -> run_view.RunView:
        self._read(command)
        for stage in self.stages.values():
            if stage.state == run_view.RUNNING:
                self._measure(stage)
        state = "stopping: training saves" if self.stopped_by else "running"
        if self.process and self.process.poll() is not None:
            state = "stopped" if self.stopped_by else "failed" if self._status() else "completed"
        accuracy = run_view.newest_accuracy(self.params.select.split, self.started)
        links = {"log": str(command.path)} | self._mlflow()
        seconds, stages = time.time() - self.started, list(self.stages.values())
        return run_view.RunView("local", state, seconds, stages, accuracy, "", links)

    def _measure(self, stage: run_view.Stage) -> None:
        started = self.starts[stage.name]
        stage.seconds = time.time() - started
        kind = stage.name.partition(" ")[0]
        progress = run_view.stage_progress("evaluate_base" if kind == "base" else kind, started)
        if progress:
            stage.share, stage.note = progress.share, progress.text

    def _mlflow(self) -> dict[str, str]:
        """Return the page that `dopsd publish` wrote, if this run has published."""
        if not MLFLOW_PAGES.is_file() or MLFLOW_PAGES.stat().st_mtime < self.started:
            return {}
        pages = read_json(MLFLOW_PAGES, "dopsd publish").get("comparison", {})
        page = next(iter(pages.values()), "")
        needs_server = not os.environ.get("MLFLOW_TRACKING_URI", "").startswith("http")
        note = f" (while `{start_command('MLflow')}` runs)" if needs_server else ""
        return {"MLflow": page and f"{page}{note}"}

    def _report_end(self, command: LoggedCommand) -> None:
        """Return if the run is completed."""
        status, lines = self._status(), command.lines
        if self.stopped_by:
            outcome = run_view.saved_line(lines) or "no training was stopped"
            raise Code.INTERRUPTED.error(
                f"run: stopped by {signal.Signals(self.stopped_by).name}; {outcome}; the same"
                " command continues",
                128 + self.stopped_by,
            )
        if status:
            message, code = run_view.split_code(run_view.reason(lines))
            message = f"run: {message}; output: {command.path}"
            raise DopsdError(message, run_view.exit_code(lines) or status, code=code)
