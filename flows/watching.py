"""Watch a run until its end: `dopsd run` and `dopsd attach`."""

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import ArtifactFilter, FlowRunFilter
from prefect.client.schemas.objects import Artifact, FlowRun, StateType, TaskRun, WorkerStatus
from prefect.client.schemas.sorting import ArtifactSort, TaskRunSort

from dopsd.core.errors import Code, DopsdError
from dopsd.pipeline.doctor.services import has_lost_worker
from dopsd.pipeline.run import view as run_view
from dopsd.pipeline.run.request import RunRequest, check
from dopsd.pipeline.run.view import (
    INTERRUPTED,
    Display,
    RunView,
    Stage,
    clock,
    expected_stages,
    newest_log,
    split_code,
)
from dopsd.tracking.client import shown, start_command
from flows import runs, server
from flows.artifacts import FENCE, SUMMARY
from flows.machines import PAGE

LOOK_EVERY = 1.0  # seconds
AWAY = "Prefect's server does not answer; the run goes on, and so does this view once it is back"


def watch(client: SyncPrefectClient, run: FlowRun, command: str) -> None:
    """Show a run until it ends; Ctrl-C leaves it running.

    Raises:
        DopsdError: if the run fails (exit code 1), is cancelled, or the view is left (130).
    """
    with leaving(run, command):
        run = _until_over(client, run)
        _report_end(client, run, command)


@contextmanager
def leaving(run: FlowRun, command: str) -> Iterator[None]:
    """Say at a Ctrl-C that the run goes on; the same command would start another."""
    try:
        yield
    except KeyboardInterrupt:
        raise Code.RUN_LEFT.error(
            f"{command}: left {run.name}, which goes on; `dopsd attach {run.name}` shows it again,"
            f" `dopsd cancel {run.name}` stops it",
            INTERRUPTED,
        ) from None


def _until_over(client: SyncPrefectClient, run: FlowRun) -> FlowRun:
    """Show a run until it ends, and return it as it ended."""
    expected = _expected(run.parameters)
    view = RunView(run.name, (run.state_name or "").lower())
    with Display(f"Ctrl-C leaves the view; the run goes on (`dopsd cancel {run.name}`)") as display:
        try:
            while True:
                display.show(view)
                if look := _look(client, run, expected):
                    run, view = look
                    if runs.is_over(run):
                        return run
                else:
                    view.note = AWAY
                time.sleep(LOOK_EVERY)
        finally:
            display.show(view, is_last=True)


def _look(
    client: SyncPrefectClient, run: FlowRun, expected: list[str]
) -> tuple[FlowRun, RunView] | None:
    """Return the run and its view as they are now, or None while the server is away or failing."""
    if server.is_reachable():
        with server.passing_failures():
            run = client.read_flow_run(run.id)
            return run, view_of(client, run, expected)
    return None


def _expected(parameters: dict[str, Any]) -> list[str]:
    """Return the stages that a run with these parameters will have; none if they are not valid."""
    names = RunRequest.__dataclass_fields__
    values = {name: v for name, v in parameters.items() if name in names and v is not None}
    try:
        return ["settings", *expected_stages(check(RunRequest(**values), can_retrain=True))]
    except (DopsdError, TypeError):
        return []


def _report_end(client: SyncPrefectClient, run: FlowRun, command: str) -> None:
    """Print the results of a run that is completed."""
    message = (run.state.message or "") if run.state else ""
    if run.state_type == StateType.COMPLETED:
        with server.passing_failures():
            texts = [str(a.data) for a in _artifacts(client, run.id) if a.key == SUMMARY]
            print(
                "".join(text.removeprefix(FENCE).removesuffix("```") for text in texts[-1:]), end=""
            )
        return
    if run.state_type == StateType.CANCELLED:
        saved = ""
        with server.passing_failures():
            saved = runs.saved_by(client, run)
        outcome = saved or "training saves its last finished update"
        message = f"{command}: {run.name} was cancelled; {outcome}"
        raise Code.RUN_CANCELLED.error(message, INTERRUPTED)
    state = (run.state_name or "failed").lower()
    message, code = split_code(message or "no reason given")
    raise DopsdError(f"{command}: {run.name} {state}: {message}", 1, code=code)


STATES = {
    StateType.COMPLETED: run_view.DONE,
    StateType.RUNNING: run_view.RUNNING,
    StateType.FAILED: run_view.FAILED,
    StateType.CRASHED: run_view.FAILED,
    StateType.CANCELLED: run_view.STOPPED,
    StateType.CANCELLING: run_view.STOPPED,
}
BEFORE = (StateType.SCHEDULED, StateType.PENDING)  # a run has not begun


def view_of(client: SyncPrefectClient, run: FlowRun, expected: list[str]) -> RunView:
    """Return what the server knows about a run."""
    tasks, artifacts = _task_runs(client, run.id), _artifacts(client, run.id)
    bars = {a.task_run_id: a for a in artifacts if a.type == "progress"}
    stages = stages_of(tasks, bars, expected)
    if runs.is_over(run):
        stages = [_ended(stage) for stage in stages]
        if run.state_type == StateType.COMPLETED:
            stages = [stage for stage in stages if stage.state != run_view.WAITING]
    return RunView(
        run.name,
        (run.state_name or "unknown").lower(),
        run.estimated_run_time.total_seconds(),
        stages,
        accuracy_of(tasks, artifacts),
        _awaited(client, run) if run.state_type in BEFORE else "",
        _links(run, artifacts),
    )


def _task_runs(client: SyncPrefectClient, run_id: UUID) -> list[TaskRun]:
    """Return all task runs of a flow run in the order of their start."""
    only = FlowRunFilter(id={"any_": [run_id]})
    tasks: list[TaskRun] = []
    while True:
        page = client.read_task_runs(
            flow_run_filter=only,
            sort=TaskRunSort.EXPECTED_START_TIME_ASC,
            limit=PAGE,
            offset=len(tasks),
        )
        tasks += page
        if len(page) < PAGE:
            return tasks


def _artifacts(client: SyncPrefectClient, run_id: UUID) -> list[Artifact]:
    only = ArtifactFilter(flow_run_id={"any_": [run_id]})
    newest = client.read_artifacts(artifact_filter=only, sort=ArtifactSort.UPDATED_DESC, limit=PAGE)
    return newest[::-1]


def stages_of(
    tasks: list[TaskRun], bars: dict[UUID | None, Artifact], expected: list[str]
) -> list[Stage]:
    """Return the stages of a run; the evaluations of a run's checkpoints are one stage."""
    stages = {name: Stage(name) for name in expected}
    evaluations: dict[str, list[TaskRun]] = {}
    run_key = ""
    for task in tasks:
        kind, _, subject = task.name.partition(" ")
        run_key = subject if kind == "train" else run_key
        if re.match(r"evaluate\b", kind):  # evaluate-1a2 until the task starts
            evaluations.setdefault(f"evaluate {run_key}", []).append(task)
        elif task.start_time:
            stages[task.name] = _stage(task, bars.get(task.id))
    return list(
        (stages | {name: _group(name, tasks) for name, tasks in evaluations.items()}).values()
    )


def _stage(task: TaskRun, bar: Artifact | None) -> Stage:
    state = STATES.get(task.state_type, run_view.WAITING) if task.state_type else run_view.WAITING
    stage = Stage(task.name, state, _seconds(task.start_time, task.end_time))
    if task.state_name == "Cached":
        stage.state = run_view.CACHED
    elif state == run_view.RUNNING and bar:
        stage.share, stage.note = (
            float(str(bar.data)) / 100,
            (bar.description or "").partition(": ")[2],
        )
    elif task.state_name == "AwaitingRetry":
        stage.note = "failed; waits for another attempt"
    return stage


def _group(name: str, tasks: list[TaskRun]) -> Stage:
    """Return one stage for the evaluations of several checkpoints."""
    states = [STATES.get(task.state_type, run_view.WAITING) for task in tasks if task.state_type]
    done = [task for task in tasks if task.state_type == StateType.COMPLETED]
    starts = [task.start_time for task in tasks if task.start_time]
    if len(done) == len(tasks):
        is_new = any(task.state_name != "Cached" for task in tasks)
        ends = [task.end_time for task in tasks if task.end_time]
        state = run_view.DONE if is_new else run_view.CACHED
        return Stage(name, state, _seconds(min(starts), max(ends)) if starts and ends else None)
    problems = [s for s in (run_view.FAILED, run_view.STOPPED) if s in states]
    state = problems[0] if problems else run_view.RUNNING if starts else run_view.WAITING
    seconds = _seconds(min(starts), None) if starts else None
    left = (len(tasks) - len(done)) * seconds / len(done) if done and seconds else None
    note = f"{len(done)} of {len(tasks)}" + ("" if left is None else f", {clock(left)} left")
    return Stage(name, state, seconds, len(done) / len(tasks), note)


def _seconds(start: datetime | None, end: datetime | None) -> float | None:
    """Return the time since a start; two machines' clocks may differ."""
    return None if start is None else max(0.0, ((end or datetime.now(UTC)) - start).total_seconds())


def _ended(stage: Stage) -> Stage:
    """Mark what still ran when the run ended as stopped."""
    if stage.state == run_view.RUNNING:
        stage.state, stage.share, stage.note = run_view.STOPPED, None, ""
    return stage


def accuracy_of(tasks: list[TaskRun], artifacts: list[Artifact]) -> str:
    """Return the accuracy of the checkpoint that was evaluated or selected last, or nothing."""
    tables = [a for a in artifacts if (a.key or "").startswith("checkpoints-")]
    evaluated = [t for t in tasks if t.name.startswith("evaluate ") and t.end_time and t.state]
    last = max(evaluated, key=lambda task: task.end_time or datetime.min, default=None)
    message = (last.state.message or "") if last and last.state else ""
    if tables and (
        not last or not last.end_time or (tables[-1].created or last.end_time) >= last.end_time
    ):
        return _selected(json.loads(str(tables[-1].data)))
    return message if message.startswith("update ") else ""


def _selected(rows: list[dict[str, Any]]) -> str:
    """Format the selected row of a table of checkpoints."""
    for row in rows:
        if row["note"] == "selected":
            return (
                f"update {row['update']}, selected: {row['accuracy %']}%"
                f" [{row['95% interval'].replace(' to ', ', ')}] on {row['problems']} problems"
            )
    return ""


def _awaited(client: SyncPrefectClient, run: FlowRun) -> str:
    """Say what a run that has not begun waits for."""
    if run.expected_start_time and run.expected_start_time > datetime.now(UTC) + runs.SKEW:
        return f"is planned for {runs.time_of(run)}"
    running = runs.running(client, "run")
    if running:
        return f"waits for the end of {running[0].name}"
    pool = run.work_pool_name or ""
    workers = client.read_workers_for_work_pool(pool) if pool else []
    if any(worker.status == WorkerStatus.ONLINE for worker in workers) and not has_lost_worker():
        return "waits for the worker"
    start = start_command("Prefect")
    start = start if start == "make up" else f"prefect worker start --pool {pool}"
    return f"waits for a worker, and none is online; `{start}` starts one"


def _links(run: FlowRun, artifacts: list[Artifact]) -> dict[str, str]:
    """Return where to read more: Prefect's page, MLflow's page, the newest output."""
    links = {"Prefect": runs.page(run.id)}
    server = os.environ.get("MLFLOW_TRACKING_URI", "")
    if server.startswith("http"):
        links["MLflow"] = shown(server)
    for artifact in artifacts:
        if artifact.type == "link" and (match := re.search(r"\((http[^)]+)\)", str(artifact.data))):
            links["MLflow"] = match[1]
    if run.start_time and (log_file := newest_log(run.start_time.timestamp())):
        links["log"] = log_file
    return links
