"""Artifacts in the Prefect UI: progress bars of stages, checkpoints, results, and stalled runs."""

import json
import time
from contextlib import suppress
from typing import Any
from uuid import UUID

import httpx
from prefect import get_run_logger, runtime
from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.client.orchestration import get_client
from prefect.events import emit_event
from prefect.exceptions import PrefectException

from dopsd.config.params import Params
from dopsd.core.paths import RunKey
from dopsd.core.statistics import gap, percent
from dopsd.core.tables import read_table
from dopsd.evaluation.curve import curve_of, start_of_curve
from dopsd.pipeline.run.view import stage_progress
from flows import server
from flows.running import OutputListener

TAG = "stalled"
STALLED, PROGRESSED = "dopsd.run.stalled", "dopsd.run.progressed"  # events
SUMMARY, FENCE = "summary", "```text\n"  # key of the artifact that ends a run; how it begins
EVERY = 5.0  # seconds between two looks at a stage's progress
# errors of a server that is away or stopping; the work continues without it
SERVER_ERRORS = (httpx.HTTPError, PrefectException, OSError)


class ProgressBar(OutputListener):
    """Progress artifact of a stage, read from work/<stage>.json, which the stage keeps rewriting.

    Args:
        key: What the stage runs for: a task, or a run.
    """

    def __init__(self, stage: str, key: str) -> None:
        self.stage, self.key = stage, f"{stage}-{key}".replace("_", "-")
        self.started = time.time()
        # whether the run is marked as stalled: unknown, since an earlier process may have done so
        self.shown: tuple[float, bool | None] = (-1.0, None)
        self.looked = 0.0
        self.artifact: UUID | None = None

    def on_tick(self) -> None:
        """Update the bar if the last look is EVERY seconds old."""
        if time.monotonic() - self.looked > EVERY:
            self.finish()

    def finish(self) -> None:
        """Update the bar at once."""
        self.looked = time.monotonic()
        progress = stage_progress(self.stage, self.started)
        if not progress or not server.is_reachable():
            return
        state = (progress.share, progress.is_stalled)
        if state != self.shown:
            with suppress(*SERVER_ERRORS):
                self._show(100 * progress.share, f"{self.stage}: {progress.text}")
                if progress.is_stalled != self.shown[1]:
                    flag_stall(progress.is_stalled, progress.text)
                self.shown = state

    def end(self) -> None:
        """Remove the mark of a stalled run: its command has ended."""
        if self.shown[1] and server.is_reachable():
            with suppress(*SERVER_ERRORS):
                flag_stall(False, f"{self.stage} has ended")
                self.shown = (self.shown[0], False)

    def _show(self, percent: float, description: str) -> None:
        if self.artifact is None:
            self.artifact = create_progress_artifact(  # type: ignore[assignment]  # a coroutine only where asyncio calls
                percent, key=self.key, description=description
            )
        else:
            update_progress_artifact(self.artifact, percent, description=description)


def show_checkpoints(run_key: RunKey) -> None:
    """Show the accuracy of every checkpoint on the selection split; the selected one is marked."""
    chosen = json.loads((run_key.folder / "best" / "select.json").read_text(encoding="utf-8"))
    began_with = start_of_curve(run_key.folder) or "base"
    rows = [
        {
            "update": row["update"],
            "accuracy %": percent(row["accuracy"]),
            "95% interval": f"{percent(row['low'])} to {percent(row['high'])}",
            "problems": f"{row['n']} {chosen['split']}",
            "note": (
                began_with
                if row["update"] == 0
                else "selected"
                if row["update"] == chosen["update"]
                else ""
            ),
        }
        for row in curve_of(run_key.folder)
    ]
    description = f"Checkpoints of {run_key} on {chosen['split']}, protocol {chosen['protocol']}"
    create_table_artifact(rows, key=f"checkpoints-{run_key.key}", description=description)


def show_summary(params: Params) -> None:
    """Show and log what `dopsd summary` prints: the end of a run."""
    from dopsd.pipeline.results.summary import summary  # slow to import

    if not any(run.key.is_tested for run in params.runs):
        return
    text = summary(params)
    get_run_logger().info(text)
    create_markdown_artifact(f"{FENCE}{text}\n```", key=SUMMARY, description="Accuracy on test")


def show_result(run_key: RunKey, links: dict[str, str]) -> None:
    """Show the result of a run, and its link to MLflow.

    Args:
        run_key: Task, method and seed.
        links: Addresses in the MLflow UI by name; empty if not published.
    """
    text = result(run_key, links)
    create_markdown_artifact(text, key=f"result-{run_key.key}", description=f"Result of {run_key}")
    if "run" in links:
        create_link_artifact(
            links["run"],
            "The run in MLflow",
            key=f"mlflow-{run_key.key}",
            description=f"MLflow run of {run_key}",
        )


def result(run_key: RunKey, links: dict[str, str]) -> str:
    """Return as Markdown: test accuracies, cost, numbers of the plots, and paths of the files."""
    tested = json.loads((run_key.folder / "test" / "paired.json").read_text(encoding="utf-8"))
    costs = json.loads((run_key.folder / "train.json").read_text(encoding="utf-8"))
    chosen = tested["selected"]
    lines = [
        f"# {run_key}",
        "",
        "| protocol | base % | trained % | difference, paired 95% interval | problems |",
        "|---|---|---|---|---|",
    ]
    for name, report in tested["protocols"].items():
        sides = " | ".join(percent(report[side]["accuracy"]) for side in ("base", "best"))
        difference = gap(report["paired"]["difference"], report["paired"]["interval"])
        lines.append(f"| {name} | {sides} | {difference} | {report['base']['n']} |")
    lines += [
        "",
        (
            f"Checkpoint {chosen['update']}, selected on {chosen['split']}; cost:"
            f" {costs['updates']} updates, "
        ),
    ]
    lines[-1] += (
        f"{costs['rollouts']} rollouts ({costs['trajectories']} kept), {costs['sampled_tokens']}"
        " tokens."
    )
    lines += [
        "",
        f"## Accuracy on {chosen['split']}",
        "",
        "| update | accuracy % | 95% interval |",
        "|---|---|---|",
    ]
    for row in curve_of(run_key.folder):
        lines.append(
            f"| {row['update']} | {percent(row['accuracy'])} | {percent(row['low'])} to"
            f" {percent(row['high'])} |"
        )
    lines += [
        "",
        "## Training",
        "",
        "| until update | mean loss | mean first-attempt score |",
        "|---|---|---|",
        *_training(run_key),
    ]
    lines += ["", f"Figures: `reports/{run_key}/`. Adapter: `{run_key.folder}/best`."]
    if run_key.page.is_file() and "report" not in links:
        lines += [f"Report, one HTML file: `{run_key.page}`."]
    lines += [f"[{name}]({link})" for name, link in links.items()]
    return "\n".join(lines) + "\n"


def _training(run_key: RunKey, rows: int = 10) -> list[str]:
    """Return about `rows` rows of means over equally many updates.

    Single updates are hard to compare, since they train different parts of answers.
    """
    table = read_table(run_key.folder / "train.csv")
    step = max(1, len(table) // rows)
    chunks = [table[start : start + step] for start in range(0, len(table), step)]
    return [
        f"| {chunk[-1]['update']} | {_mean(chunk, 'loss')} |"
        f" {_mean(chunk, 'first_attempt_score')} |"
        for chunk in chunks
    ]


def _mean(rows: list[dict[str, Any]], name: str) -> str:
    """Format the mean of a column over the rows that have it; empty if none has."""
    values = [row[name] for row in rows if name in row]
    return f"{sum(values) / len(values):.4f}" if values else ""


def flag_stall(is_stalled: bool, text: str) -> None:
    """Set or remove the tag of this task's run, and emit the event; do nothing without a change.

    The state of the run stays as it is. An automation that named it would undo a cancellation, or
    open a run again that has ended meanwhile.
    """
    run_id = UUID(runtime.flow_run.id)
    with get_client(sync_client=True) as client:
        run = client.read_flow_run(run_id)
        if (TAG in run.tags) == is_stalled:
            return
        tags = {*run.tags, TAG} if is_stalled else {*run.tags} - {TAG}
        client.update_flow_run(run_id, tags=sorted(tags))
    emit_event(
        STALLED if is_stalled else PROGRESSED,
        resource={
            "prefect.resource.id": f"prefect.flow-run.{run_id}",
            "prefect.resource.name": run.name,
        },
        payload={"progress": text},
    )
    message = f"stalled: {text}" if is_stalled else f"no longer stalled: {text}"
    (get_run_logger().warning if is_stalled else get_run_logger().info)(message)
