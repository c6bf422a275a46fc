"""Find a run of the deployment dopsd/train on Prefect's server, among any number of others."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterExpectedStartTime,
    FlowRunFilterName,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
)
from prefect.client.schemas.objects import TERMINAL_STATES, FlowRun, StateType
from prefect.client.schemas.sorting import FlowRunSort

from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError, unknown
from flows.machines import TAG
from flows.submission import deployment, is_over

COMPARE = "dopsd-compare"
PAGE = 200  # rows of an answer, the server's limit
LISTED = 10  # names in a message
SKEW = timedelta(minutes=1)  # of the server's clock: a run that starts later is planned
ID = re.compile("[0-9a-f-]{1,36}")  # of a run, or its beginning


def find(client: SyncPrefectClient, command: str, name: str | None) -> FlowRun:
    """Return the run of this name or beginning of an id; without one the newest in progress.

    Running runs go before those that wait. A run that is planned for later is not in progress.

    Raises:
        DopsdError: if there is none, or if several ids begin so.
    """
    if name is None:
        return _in_progress(client, command)
    named = FlowRunFilter(name=FlowRunFilterName(any_=[name]))
    matches = runs(client, command, named) or _with_id(client, command, name.lower())
    matches = matches or _cells(client, name)
    if len(matches) == 1:
        return matches[0]
    if not matches and (compared := comparisons(client, named)):
        if command == "cancel":
            return compared[0]
        raise DopsdError(_of_comparison(command, name), code=Code.NO_RUN)
    if matches:
        ids = ", ".join(str(run.id) for run in matches[:LISTED])
        message = f"{command}: {name}: several runs begin so: {ids}"
        raise DopsdError(message, code=Code.NO_RUN)
    names = [run.name for run in runs(client, command, most=LISTED)] or ["no run"]
    raise DopsdError(unknown(f"{command}: {name}", names), code=Code.NO_RUN)


def runs(
    client: SyncPrefectClient,
    command: str,
    only: FlowRunFilter | None = None,
    most: int | None = None,
    offset: int = 0,
    sort: FlowRunSort = FlowRunSort.EXPECTED_START_TIME_DESC,
) -> list[FlowRun]:
    """Return the newest runs of the deployment, newest first.

    Args:
        client: Client of Prefect's server.
        command: Command that messages name.
        only: Which runs count; None: all.
        most: Number of runs; None: PAGE, the most.
        offset: Number of newer runs to leave out.
        sort: Another order, which also says which runs are left out.
    """
    of_deployment = DeploymentFilter(id=DeploymentFilterId(any_=[deployment(client, command).id]))
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
    while ID.fullmatch(beginning) and (page := runs(client, command, offset=offset)):
        matches += [run for run in page if str(run.id).startswith(beginning)]
        offset += len(page)
    return matches


def _cells(client: SyncPrefectClient, name: str) -> list[FlowRun]:
    """Return the newest run of a comparison of this name: task/method/seed.

    One in progress goes before those that have ended.
    """
    named = FlowRunFilter(name=FlowRunFilterName(any_=[name]), tags=FlowRunFilterTags(all_=[TAG]))
    newest = client.read_flow_runs(flow_run_filter=named, sort=FlowRunSort.START_TIME_DESC)
    return sorted(newest, key=is_over)[:1]


def comparisons(client: SyncPrefectClient, only: FlowRunFilter) -> list[FlowRun]:
    """Return the newest runs of the flow dopsd-compare, which trains on many machines."""
    flow = FlowFilter(name=FlowFilterName(any_=[COMPARE]))
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
    return runs(client, command, _in_state(FlowRunFilterStateType(any_=[StateType.RUNNING])))


def _in_state(
    kind: FlowRunFilterStateType, start: FlowRunFilterExpectedStartTime | None = None
) -> FlowRunFilter:
    return FlowRunFilter(state=FlowRunFilterState(type=kind), expected_start_time=start)


def _in_progress(client: SyncPrefectClient, command: str) -> FlowRun:
    soon = datetime.now(UTC) + SKEW
    alive = FlowRunFilterStateType(not_any_=sorted(TERMINAL_STATES))
    active = _in_state(alive, FlowRunFilterExpectedStartTime(before_=soon))
    if found := running(client, command) or runs(client, command, active, most=1):
        return found[0]
    if compared := comparisons(client, active):
        raise DopsdError(_of_comparison(command, compared[0].name), code=Code.NO_RUN)
    over = FlowRunFilterStateType(any_=sorted(TERMINAL_STATES))
    newest = runs(client, command, _in_state(over), most=1)
    last = f"; the last was {newest[0].name} ({newest[0].state_name})" if newest else ""
    planned = _in_state(alive, FlowRunFilterExpectedStartTime(after_=soon))
    next_one = runs(client, command, planned, most=1, sort=FlowRunSort.EXPECTED_START_TIME_ASC)
    for run in next_one:
        last += (
            f"; the next one is {run.name}, planned for {run.expected_start_time:%Y-%m-%d %H:%M}"
        )
        last += f" UTC (`dopsd cancel {run.name}` stops it)"
    message = f"{command}: no run is in progress{last}; `dopsd run` starts one"
    raise DopsdError(message, code=Code.NO_RUN)
