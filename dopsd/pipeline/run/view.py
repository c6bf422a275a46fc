"""The view of `dopsd run` and `dopsd attach`: live on a terminal, a line for each change elsewhere.

A source, Prefect's server or DVC's output, makes a `RunView` every second; `Display` shows it.
"""

from __future__ import annotations

import json
import math
import re
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from dopsd.core.errors import Code
from dopsd.core.files import WORK
from dopsd.core.progress import FEWEST, PLAIN_EVERY, STEADY
from dopsd.core.statistics import ends, percent

if TYPE_CHECKING:
    from dopsd.config.params import Params
    from dopsd.core.paths import RunKey


class StageProgress(NamedTuple):
    """How far a stage is."""

    share: float  # from 0 to 1
    text: str  # units, rate and time left; of a stalled stage, for how long and what to do
    is_stalled: bool = False  # no update for ten times the usual time (dopsd.core.progress)


def clock(seconds: float) -> str:
    """Format seconds as 1:05, or 1:02:05 from one hour on."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def stage_progress(stage: str, since: float) -> StageProgress | None:
    """Return the progress of a stage from work/<stage>.json, which the stage keeps rewriting.

    Args:
        since: When the stage started; an older file is that of another run.

    Returns:
        The progress; None if the stage has written none, or has nothing to do.
    """
    file = WORK / f"{stage}.json"
    with suppress(OSError, ValueError, KeyError, TypeError):
        written = file.stat().st_mtime
        if written >= since and (state := json.loads(file.read_text(encoding="utf-8")))["total"]:
            return _described(state, time.time() - written)
    return None


def _described(state: dict[str, Any], age: float) -> StageProgress:
    """Return the progress that a stage wrote `age` seconds ago."""
    done, total, rate = state["done"], state["total"], state["rate"]
    if done < total and age > state.get("stalled_after", math.inf):
        return StageProgress(done / total, f"{done} of {total}, {_stall(state, age)}", True)
    is_known = rate and state["steps"] >= STEADY
    left = f", {clock((total - done) / rate)} left" if is_known else ""
    return StageProgress(done / total, f"{done} of {total}, {rate:.2f}/s{left}")


def _stall(state: dict[str, Any], age: float) -> str:
    usual = f", usual are {state['usual']:.0f} s" if state["steps"] >= FEWEST else ""
    return (
        f"no update for {clock(age)}{usual}: look at the log; `dopsd cancel` saves what it can, and"
        " the next run continues"
    )


def accuracy(report: dict[str, Any]) -> str:
    """Format accuracy, 95% interval, split and number of problems of an evaluation."""
    interval, problems = ends(report["interval"]), f"{report['n']} {report['split']} problems"
    return f"{percent(report['accuracy'])}% {interval} on {problems}"


def newest_accuracy(split: str, since: float) -> str:
    """Return the newest accuracy on a split in work/eval/; empty if there is none yet.

    Args:
        since: When the run started; older evaluations are those of other runs.
    """
    changed = {path: path.stat().st_mtime for path in (WORK / "eval").glob("*.json")}
    recent = [path for path in changed if changed[path] >= since]  # earlier ones are never read
    for path in sorted(recent, key=lambda path: changed[path], reverse=True):
        with suppress(OSError, ValueError, KeyError, TypeError):
            report = json.loads(path.read_text(encoding="utf-8"))["value"]
            if report["split"] == split:
                return accuracy(report)
    return ""


def exit_code(lines: list[str]) -> int:
    """Return the exit code of DVC's stage, or 0; DVC prints that code, and itself ends with 255."""
    codes = [match[1] for line in lines if (match := re.search(r"exited with (-?\d+)", line))]
    return int(codes[-1]) if codes else 0


def reason(lines: list[str]) -> str:
    """Return dopsd's last message in the output of a command, else the last line."""
    messages = [line.removeprefix("dopsd: ") for line in lines if line.startswith("dopsd: ")]
    return (messages or lines or ["no output"])[-1]


def split_code(message: str) -> tuple[str, Code]:
    """Return the message of a failed stage without its code, and the code (default: RUN_FAILED)."""
    match = re.search(r" \((D\d{3})\)", message)
    with suppress(ValueError):
        if match:
            return message.replace(match[0], "", 1), Code(match[1])
    return message, Code.RUN_FAILED


def saved_line(lines: list[str]) -> str:
    """Return what stopped training says that it saved; empty if no training was stopped."""
    pattern = r"saved at update \d+ in \S+?(?=;|$)|no update was finished, so nothing is saved"
    outcomes = [match[0] for line in lines if (match := re.search(pattern, line))]
    return outcomes[-1] if outcomes else ""


def dvc_stage(name: str, run_keys: list[RunKey]) -> str:
    """Return a stage as the view names it: `train@sudoku-d_opsd-0` is train sudoku/d_opsd/0."""
    stage, _, item = name.partition("@")
    keys = {run_key.stage: str(run_key) for run_key in run_keys}
    return f"{'base' if stage == 'evaluate_base' else stage} {keys.get(item, item)}".strip()


WAITING, RUNNING, DONE, CACHED = "waiting", "running", "done", "up to date"
FAILED, STOPPED = "failed", "stopped"
STYLES = {
    WAITING: ("·", "dim"),
    RUNNING: ("▶", "bold"),
    DONE: ("✔", "green"),
    CACHED: ("✔", "dim green"),
    FAILED: ("✘", "bold red"),
    STOPPED: ("■", "yellow"),
}
INTERRUPTED = 130  # exit code of a view that Ctrl-C ended, and of a cancelled run
BAR_WIDTH = 24  # columns
AROUND = 10  # lines of the view that are not stages; a link may take two


@dataclass
class Stage:
    """One line of the view: a stage for one task or one run."""

    name: str
    state: str = WAITING
    seconds: float | None = None
    share: float | None = None  # of the work, from 0 to 1
    note: str = ""  # rate and time left, or why the stage failed


@dataclass
class RunView:
    """What is known about a run at one moment."""

    name: str
    state: str
    seconds: float = 0.0
    stages: list[Stage] = field(default_factory=list)
    accuracy: str = ""  # the newest on the selection split
    note: str = ""  # what the run waits for
    links: dict[str, str] = field(default_factory=dict)


def expected_stages(params: Params) -> list[str]:
    """List the stages of a run with these settings, in their order."""
    names = []
    for task in params.matrix.tasks:
        pretrained = [f"pretrain {task}"] if task in params.pretrain.tasks else []
        adapted = [f"adapt {task}"] if task in params.adapt.tasks else []
        names += [f"prepare {task}", *pretrained, *adapted, f"base {task}"]
    for run in params.runs:
        names += [
            f"{stage} {run.key}" for stage in ("train", "evaluate", "select", "test", "report")
        ]
    return names + (["publish"] if params.tracking.enabled else [])


def window(stages: list[Stage], most: int) -> tuple[int, list[Stage], int]:
    """Choose the stages that fit, so that the first unfinished one is among them.

    Args:
        most: Lines that there are; at least one is used.

    Returns:
        The number of hidden stages before, the shown stages, and the number hidden after.
    """
    if len(stages) <= most:
        return 0, stages, 0
    most = max(1, most - 2)
    done = next((i for i, s in enumerate(stages) if s.state not in (DONE, CACHED)), len(stages))
    first = max(0, min(done - most // 3, len(stages) - most))
    return first, stages[first : first + most], len(stages) - first - most


def render_view(view: RunView, height: int, footer: str = "") -> RenderableType:
    """Return the view as a rich renderable of at most `height` lines."""
    before, shown, after = window(view.stages, height - AROUND)
    table = Table.grid(padding=(0, 1))
    if before:
        table.add_row("", Text(f"{before} finished stages above", style="dim"))
    for stage in shown:
        table.add_row(*_row(stage))
    if after:
        table.add_row("", Text(f"{after} more stages", style="dim"))
    parts: list[RenderableType] = [_head(view), table]
    details = {"accuracy": view.accuracy, "note": view.note} | view.links
    lines = [_detail(name, text) for name, text in details.items() if text]
    parts += [*lines, *([Text(footer, style="dim")] if footer else [])]
    return Group(*parts)


def _head(view: RunView) -> Text:
    head = Text("run ", style="bold").append(view.name, style="bold cyan")
    return head.append(f"  {view.state}  {clock(view.seconds)}", style="default")


def _detail(name: str, text: str) -> Text:
    """Return a line; an address that does not fit stays one link on terminals that know links."""
    style = f"link {text}" if text.startswith("http") else ""
    return Text(f"  {name:10} ", overflow="fold").append(text, style=style)


def _row(stage: Stage) -> tuple[RenderableType, ...]:
    mark, style = STYLES[stage.state]
    sign = Spinner("dots", style="cyan") if stage.state == RUNNING else Text(mark, style=style)
    seconds = "" if stage.seconds is None else clock(stage.seconds)
    is_busy = stage.state == RUNNING and stage.share is not None
    bar = ProgressBar(1.0, stage.share or 0.0, width=BAR_WIDTH) if is_busy else Text("")
    note = stage.note or (stage.state if stage.state in (CACHED, FAILED, STOPPED) else "")
    return sign, Text(stage.name, style=style), Text(seconds, style="dim"), bar, Text(note)


class Display:
    """Shows the views of a run; use as a context manager.

    Args:
        footer: Last line on a terminal: what Ctrl-C does.
        console: Where the view goes; the default is standard output.
    """

    def __init__(self, footer: str = "", console: Console | None = None) -> None:
        self.footer, self.console = footer, console or Console(soft_wrap=True)
        self.live = (
            Live(console=self.console, refresh_per_second=4) if self.console.is_terminal else None
        )
        self.shown: dict[str, str] = {}
        self.logged_at: dict[str, float] = {}

    def __enter__(self) -> Self:
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()

    def show(self, view: RunView, is_last: bool = False) -> None:
        """Show a view; without a terminal print what is new."""
        if self.live:
            footer = "" if is_last else self.footer
            self.live.update(render_view(view, self.console.height, footer), refresh=True)
            return
        for line in self._news(view):
            self.console.print(line, markup=False, highlight=False)

    def _news(self, view: RunView) -> list[str]:
        """Return a line for every value that has changed since the last view."""
        values = {"run": f"{view.name}: {view.state}"}
        # the newest log changes with every stage: only the first is a line
        values |= {n: text for n, text in view.links.items() if n != "log" or n not in self.shown}
        values |= {s.name: _plain_state(s) for s in view.stages if s.state != WAITING}
        values |= {"accuracy": view.accuracy, "note": view.note}
        changed = {n: text for n, text in values.items() if text and self.shown.get(n) != text}
        self.shown |= changed
        return [f"{name}: {text}" for name, text in changed.items()] + self._progress(view)

    def _progress(self, view: RunView) -> list[str]:
        """Return a line for each running stage whose last line is PLAIN_EVERY seconds old."""
        now, lines = time.monotonic(), []
        for stage in view.stages:
            last = self.logged_at.setdefault(stage.name, now)
            if stage.state == RUNNING and stage.note and now - last >= PLAIN_EVERY:
                self.logged_at[stage.name] = now
                lines.append(f"{stage.name}: {stage.note}")
        return lines


def _plain_state(stage: Stage) -> str:
    if stage.state in (RUNNING, CACHED) or stage.seconds is None:
        return stage.state
    return f"{stage.state} after {clock(stage.seconds)}"


LOGS = WORK / "logs"
KEPT_LOGS = 100  # files


def new_log(name: str) -> Path:
    """Return a new file for the output of a command; remove all but the newest files."""
    LOGS.mkdir(parents=True, exist_ok=True)
    for old in sorted(LOGS.glob("*.log"))[:-KEPT_LOGS]:
        old.unlink(missing_ok=True)
    started = datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f")
    return LOGS / f"{started}-{name}.log"


def newest_log(since: float) -> str:
    """Return the newest file that was written to since then; empty if there is none."""
    files = {path: path.stat().st_mtime for path in LOGS.glob("*.log")}
    recent = [path for path, changed in files.items() if changed >= since]
    return str(max(recent)) if recent else ""
