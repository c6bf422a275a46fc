"""Machines that joined this server (`make up SERVER=...`), and the runs that they work on.

A machine is a work pool dopsd-NAME with one worker, and a deployment dopsd/train-NAME.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import FlowRun, StateType, WorkPool, WorkPoolStatus
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelling

PREFIX = "dopsd-"
UNFINISHED = [
    StateType.SCHEDULED,
    StateType.PENDING,
    StateType.RUNNING,
    StateType.PAUSED,
    StateType.CANCELLING,
]
TAG = "cell"  # of the runs that a comparison starts
LIMIT = 200  # answers of one request to Prefect's server


@dataclass(frozen=True)
class Machine:
    """A machine, as the server knows it."""

    name: str
    deployment: UUID
    version: str  # digest of its code
    is_there: bool  # its worker reports, and its pool is not paused
    is_stopped: bool = False  # by `make down`, which pauses the pool


def machines(client: SyncPrefectClient) -> list[Machine]:
    """Return the machines that have ever joined, by name."""
    found: list[Machine] = []
    for pool in _pools(client):
        name = pool.name.removeprefix(PREFIX)
        try:
            deployment = client.read_deployment_by_name(f"dopsd/train-{name}")
        except ObjectNotFound:
            continue
        is_there = pool.status == WorkPoolStatus.READY and not pool.is_paused
        version = deployment.version or ""
        found.append(Machine(name, deployment.id, version, is_there, pool.is_paused))
    return found


def _pools(client: SyncPrefectClient) -> list[WorkPool]:
    pools: list[WorkPool] = []
    while True:
        more = client.read_work_pools(limit=LIMIT, offset=len(pools))
        pools += more
        if len(more) < LIMIT:
            break
    ours = [pool for pool in pools if pool.name.startswith(PREFIX) and pool.type == "process"]
    return sorted(ours, key=lambda pool: pool.name)


def is_busy(client: SyncPrefectClient, machine: Machine) -> bool:
    """Tell whether a run waits or works on a machine."""
    states = FlowRunFilterState(type=FlowRunFilterStateType(any_=UNFINISHED))
    pool = WorkPoolFilter(name=WorkPoolFilterName(any_=[PREFIX + machine.name]))
    runs = client.read_flow_runs(
        flow_run_filter=FlowRunFilter(state=states), work_pool_filter=pool, limit=1
    )
    return bool(runs)


@dataclass(frozen=True)
class UnfinishedRun:
    """A run that a comparison started and that has not ended."""

    id: UUID
    name: str
    machine: str
    parameters: dict[str, Any]


def unfinished(client: SyncPrefectClient) -> list[UnfinishedRun]:
    """Return the runs of comparisons that have neither ended nor been asked to."""
    wanted = [state for state in UNFINISHED if state is not StateType.CANCELLING]
    runs = client.read_flow_runs(
        flow_run_filter=FlowRunFilter(
            state=FlowRunFilterState(type=FlowRunFilterStateType(any_=wanted)),
            tags=FlowRunFilterTags(all_=[TAG]),
        ),
        limit=LIMIT,
    )
    return [
        UnfinishedRun(
            run.id,
            run.name,
            (run.work_pool_name or "").removeprefix(PREFIX),
            run.parameters,
        )
        for run in runs
    ]


def start(
    client: SyncPrefectClient, machine: Machine, parameters: dict[str, Any], name: str
) -> FlowRun:
    """Start a run on a machine."""
    return client.create_flow_run_from_deployment(
        machine.deployment, parameters=parameters, name=name, tags=["dopsd", TAG]
    )


def stop(client: SyncPrefectClient, run_id: UUID, reason: str) -> None:
    """Ask a run to save and end; a machine that is away learns of it when it is back."""
    client.set_flow_run_state(run_id, Cancelling(message=reason), force=True)
