"""Submit, find and cancel runs of the deployment dopsd/train: what `dopsd run` and others call."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import DeploymentFilter, FlowFilter, FlowRunFilter, LogFilter
from prefect.client.schemas.objects import TERMINAL_STATES, FlowRun, State, StateType
from prefect.client.schemas.responses import DeploymentResponse, StateAbortDetails
from prefect.client.schemas.sorting import FlowRunSort, LogSort
from prefect.exceptions import ObjectNotFound, PrefectException
from prefect.settings import get_current_settings

from dopsd.core.environment import proxies
from dopsd.core.errors import TEMPORARY, Code, unknown
from dopsd.core.progress import log
from dopsd.pipeline.run.view import INTERRUPTED, saved_line
from dopsd.tracking.client import shown, start_command
from flows import server
from flows.machines import PAGE, TAG

DEPLOYMENT = "dopsd/train"
COMPARE = "dopsd-compare"
LISTED = 10  # names in a message
SKEW = timedelta(minutes=1)  # of the server's clock: a run that starts later is planned
ID = re.compile("[0-9a-f-]{1,36}")  # of a run, or its beginning
LINES = 200  # of a log, the newest, in which a stopped run says what it saved
LOOK_EVERY = 1.0  # seconds
SLOW = 60.0  # seconds after which a cancellation says what it waits for


@contextmanager
def connection(command: str) -> Iterator[SyncPrefectClient]:
    """Yield a client of Prefect's server; turn errors of the server into one line."""
    if not server.is_reachable():
        raise Code.RUN_SERVER.error(_no_server(command), TEMPORARY)
    try:
        opened = get_client(sync_client=True)
    except (ValueError, ImportError) as error:  # of httpx, which makes ready for every proxy
        reason = " ".join(str(error).split())
        message = f"{command}: {', '.join(proxies())}: {reason}; unset it, or name an HTTP proxy"
        raise Code.RUN_SERVER.error(message) from None
    try:
        with opened as client:
            yield client
    except httpx.ConnectError:
        raise Code.RUN_SERVER.error(_no_server(command), TEMPORARY) from None
    except httpx.TransportError as error:
        message = (
            f"{command}: Prefect's server at {address()} does not answer ({type(error).__name__});"
            " a run that it has started goes on, and `dopsd attach` shows it"
        )
        raise Code.RUN_SERVER.error(message, TEMPORARY) from None
    except (httpx.HTTPError, PrefectException) as error:
        reason = " ".join(str(error).split())
        is_failing = isinstance(error, httpx.HTTPStatusError) and error.response.is_server_error
        how = "failed" if is_failing else "refused"
        message = f"{command}: Prefect's server at {address()} {how}: {reason}"
        raise Code.RUN_SERVER.error(message, TEMPORARY if is_failing else 2) from None


def address() -> str:
    """Return the address of Prefect's API, without a password."""
    return shown(str(get_current_settings().api.url or "(no PREFECT_API_URL)"))


def _no_server(command: str) -> str:
    return (
        f"{command}: no Prefect server at {address()}; {server.start_advice()}, or run without a"
        " server: `dopsd run --local`"
    )


def deployment(client: SyncPrefectClient, command: str) -> DeploymentResponse:
    """Return the deployment dopsd/train."""
    try:
        return client.read_deployment_by_name(DEPLOYMENT)
    except ObjectNotFound:
        if not re.search("/api(/|$)", address()):  # addresses of Prefect Cloud go on after it
            message = f"{command}: PREFECT_API_URL: {address()} lacks /api at its end"
            raise Code.RUN_SERVER.error(message) from None
        by_hand = "prefect work-pool create dopsd --type process` once, then `prefect deploy --all"
        deploy = "make up" if start_command("Prefect") == "make up" else by_hand
        raise Code.NO_DEPLOYMENT.error(
            f"{command}: the server at {address()} has no deployment {DEPLOYMENT}; run `{deploy}`"
        ) from None


def submit(client: SyncPrefectClient, parameters: dict[str, Any]) -> FlowRun:
    """Submit a run, and say so if the worker runs it in another folder."""
    target = deployment(client, "run")
    folder = _folder(target)
    if folder and Path(folder) != Path.cwd():
        log(f"run: note: the worker runs in {folder}, with the params.yaml of that folder")
    try:
        return client.create_flow_run_from_deployment(target.id, parameters=parameters)
    except KeyboardInterrupt:
        message = "run: interrupted while the server was asked; the run may have started:"
        message += " see `dopsd attach` before you start it again"
        raise Code.RUN_LEFT.error(message, INTERRUPTED) from None


def _folder(target: DeploymentResponse) -> str:
    """Return the folder in which a deployment runs, or nothing if the server does not know it."""
    for step in target.pull_steps or []:
        for options in step.values():
            if isinstance(options, dict) and options.get("directory"):
                return str(options["directory"])
    return target.path or ""


def page(run_id: UUID) -> str:
    """Return the address of a run in Prefect's UI."""
    ui = get_current_settings().ui_url or address().removesuffix("/api")
    return f"{shown(ui)}/runs/flow-run/{run_id}"


def time_of(run: FlowRun) -> str:
    """Return when a planned run starts."""
    return f"{run.expected_start_time:%Y-%m-%d %H:%M} UTC"


def is_over(run: FlowRun) -> bool:
    """Tell whether a run has ended."""
    return run.state is not None and run.state.is_final()


def cancel(client: SyncPrefectClient, run: FlowRun) -> str:
    """Cancel a run, wait for its end, and return what it saved."""
    if is_over(run):
        message = f"cancel: {run.name} has ended already: {run.state_name}"
        raise Code.NO_RUN.error(message)
    result = client.set_flow_run_state(run.id, State(type=StateType.CANCELLING))
    if isinstance(result.details, StateAbortDetails):
        message = f"cancel: {run.name}: {result.details.reason}"
        raise Code.RUN_SERVER.error(message)
    started, is_announced = time.monotonic(), False
    while not is_over(run):
        with server.passing_failures():
            run = client.read_flow_run(run.id)
        if time.monotonic() - started > SLOW and not is_announced:
            log(
                f"cancel: waiting for the worker to stop {run.name}; Ctrl-C leaves it to the worker"
            )
            is_announced = True
        time.sleep(LOOK_EVERY)
    if run.state_type != StateType.CANCELLED:
        message = f"cancel: {run.name} ended before it was cancelled: {run.state_name}"
        raise Code.NO_RUN.error(message)
    return saved_by(client, run)


def saved_by(client: SyncPrefectClient, run: FlowRun) -> str:
    """Return what a stopped run saved, from its log; empty if the log does not say."""
    only = LogFilter(flow_run_id={"any_": [run.id]})
    newest = client.read_logs(only, limit=LINES, sort=LogSort.TIMESTAMP_DESC)
    return saved_line([line for entry in reversed(newest) for line in entry.message.splitlines()])


def find(client: SyncPrefectClient, command: str, name: str | None) -> FlowRun:
    """Return the run of this name or beginning of an id; without one the newest in progress.

    Running runs go before those that wait. A run that is planned for later is not in progress.
    """
    if name is None:
        return _in_progress(client, command)
    named = FlowRunFilter(name={"any_": [name]})
    matches = training_runs(client, command, named) or _with_id(client, command, name.lower())
    matches = matches or _cells(client, name)
    if len(matches) == 1:
        return matches[0]
    if not matches and (compared := comparisons(client, named)):
        if command == "cancel":
            return compared[0]
        raise Code.NO_RUN.error(_of_comparison(command, name))
    if matches:
        ids = ", ".join(str(run.id) for run in matches[:LISTED])
        message = f"{command}: {name}: several runs begin so: {ids}"
        raise Code.NO_RUN.error(message)
    names = [run.name for run in training_runs(client, command, most=LISTED)] or ["no run"]
    raise Code.NO_RUN.error(unknown(f"{command}: {name}", names))


def training_runs(
    client: SyncPrefectClient,
    command: str,
    only: FlowRunFilter | None = None,
    most: int | None = None,
    offset: int = 0,
    sort: FlowRunSort = FlowRunSort.EXPECTED_START_TIME_DESC,
) -> list[FlowRun]:
    """Return the newest runs of the deployment, newest first.

    Args:
        only: Which runs count; None: all.
        most: Number of runs; None: PAGE, the most.
    """
    of_deployment = DeploymentFilter(id={"any_": [deployment(client, command).id]})
    return client.read_flow_runs(
        deployment_filter=of_deployment,
        flow_run_filter=only,
        sort=sort,
        limit=most or PAGE,
        offset=offset,
    )


def _with_id(client: SyncPrefectClient, command: str, beginning: str) -> list[FlowRun]:
    """Return the runs whose id begins so; the server cannot look for a part of an id."""
    matches: list[FlowRun] = []
    offset = 0
    while ID.fullmatch(beginning) and (page := training_runs(client, command, offset=offset)):
        matches += [run for run in page if str(run.id).startswith(beginning)]
        offset += len(page)
    return matches


def _cells(client: SyncPrefectClient, name: str) -> list[FlowRun]:
    """Return the newest run of a comparison of this name: task/method/seed.

    One in progress goes before those that have ended.
    """
    named = FlowRunFilter(name={"any_": [name]}, tags={"all_": [TAG]})
    newest = client.read_flow_runs(flow_run_filter=named, sort=FlowRunSort.START_TIME_DESC)
    return sorted(newest, key=is_over)[:1]


def comparisons(client: SyncPrefectClient, only: FlowRunFilter) -> list[FlowRun]:
    """Return the newest runs of the flow dopsd-compare, which trains on many machines."""
    flow = FlowFilter(name={"any_": [COMPARE]})
    return client.read_flow_runs(
        flow_filter=flow,
        flow_run_filter=only,
        sort=FlowRunSort.EXPECTED_START_TIME_DESC,
        limit=LISTED,
    )


def _of_comparison(command: str, name: str) -> str:
    return (
        f"{command}: {name} is a comparison: `prefect artifact inspect machines` says which machine"
        " works on what, and `dopsd attach TASK/METHOD/SEED` shows a run;"
        f" `dopsd cancel {name}` stops it"
    )


def running(client: SyncPrefectClient, command: str) -> list[FlowRun]:
    """Return the runs of the deployment that are running, newest first."""
    return training_runs(client, command, _in_state({"any_": [StateType.RUNNING]}))


def _in_state(kind: dict[str, Any], start: dict[str, datetime] | None = None) -> FlowRunFilter:
    return FlowRunFilter(state={"type": kind}, expected_start_time=start)


def _in_progress(client: SyncPrefectClient, command: str) -> FlowRun:
    soon = datetime.now(UTC) + SKEW
    alive = {"not_any_": sorted(TERMINAL_STATES)}
    active = _in_state(alive, {"before_": soon})
    if found := running(client, command) or training_runs(client, command, active, most=1):
        return found[0]
    if compared := comparisons(client, active):
        raise Code.NO_RUN.error(_of_comparison(command, compared[0].name))
    over = _in_state({"any_": sorted(TERMINAL_STATES)})
    newest = training_runs(client, command, over, 1, sort=FlowRunSort.END_TIME_DESC)
    last = f"; the last was {newest[0].name} ({newest[0].state_name})" if newest else ""
    planned = _in_state(alive, {"after_": soon})
    next_one = training_runs(
        client, command, planned, most=1, sort=FlowRunSort.EXPECTED_START_TIME_ASC
    )
    for run in next_one:
        same = training_runs(client, command, FlowRunFilter(name={"any_": [run.name]}))
        name = run.name if len(same) == 1 else run.id
        last += f"; the next one is {run.name}, planned for {time_of(run)}"
        last += f" (`dopsd cancel {name}` stops it)"
    message = f"{command}: no run is in progress{last}; `dopsd run` starts one"
    raise Code.NO_RUN.error(message)
