"""The view of `dopsd run` and `dopsd attach`: live on a terminal, a line for each change elsewhere.

A source, Prefect's server or DVC's output, makes a `RunView` every second; `Display` shows it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from dopsd.core.progress import PLAIN_EVERY
from dopsd.pipeline.run_progress import clock

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dopsd.config.params import Params

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
        names += [f"prepare {task}", *pretrained, f"base {task}"]
    for run in params.runs:
        names += [
            f"{stage} {run.key}" for stage in ("train", "evaluate", "select", "test", "report")
        ]
    return names + (["publish"] if params.tracking.enabled else [])


def window(stages: list[Stage], most: int) -> tuple[int, list[Stage], int]:
    """Choose the stages that fit, so that the first unfinished one is among them.

    Args:
        stages: All stages.
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


def render(view: RunView, height: int, footer: str = "") -> RenderableType:
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
        """Show a view; without a terminal print what is new.

        Args:
            view: The run as it is now.
            is_last: Whether the run has ended, or is left.
        """
        if self.live:
            footer = "" if is_last else self.footer
            self.live.update(render(view, self.console.height, footer), refresh=True)
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
