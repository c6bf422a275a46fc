"""The runs of a comparison on many machines: one flow run for each cell (task x method x seed).

Machines that joined (`make up SERVER=...`) have a worker of the work pool `machines`, which takes
one run at a time, in the worker's folder. The run of a lost machine goes to another one, which
continues from the newest checkpoint in `checkpoints.remote`.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import TERMINAL_STATES, FlowRun, State, StateType, WorkerStatus
from prefect.exceptions import ObjectNotFound
from prefect.flows import Flow
from prefect.logging.loggers import flow_run_logger
from prefect.states import Cancelling, Crashed, Scheduled

from dopsd.core.errors import Code
from dopsd.core.paths import RunKey
from flows import server

POOL = "machines"  # work pool of all machines that joined
DEPLOYMENT = "cell"  # dopsd/cell, the deployment of their runs
TAG = "cell"  # of their runs
WORKER = "prefect.worker.name"  # label of a run: the worker that took it
LOOK_EVERY = 3.0  # seconds
WARN_EVERY = 300.0  # seconds
# seconds that a worker may be offline for the server, which counts 90 itself, and forgets all
# workers when it was stopped for longer
AWAY = 60.0
LOSSES = 4  # of a run with its machine, after which it is not tried again
FAILURES = 2  # of a run, after which it is not tried again
HOLD_EVERY = 30.0  # seconds between two looks of a machine that holds back
PAGE = 200  # rows of an answer, the server's limit
Log = logging.Logger | logging.LoggerAdapter[logging.Logger]


@dataclass
class Cell:
    """One run of the comparison.

    Args:
        run_id: Its newest flow run; None if it must be submitted.
    """

    key: RunKey
    parameters: dict[str, Any]
    run_id: UUID | None = None
    machine: str = ""
    state: str = "waits"
    losses: int = 0
    failures: int = 0


class Cells:
    """Submits the cells of a comparison, and follows them until all are done or have failed."""

    def __init__(self, client: SyncPrefectClient, cells: list[Cell], log: Log) -> None:
        self.client, self.cells, self.log = client, cells, log
        self.unfinished = [*cells]
        self.failed: dict[str, str] = {}  # reason by cell
        self.deployment: UUID | None = None
        self.id, self.started = str(uuid4()), datetime.now(UTC)
        self.away: dict[UUID, float] = {}  # by run: since when its worker is offline
        self.idle_since = time.monotonic()

    def run(self, on_change: Callable[[], None] = lambda: None) -> None:
        """Work until all cells have ended; cancel their runs if interrupted."""
        try:
            while self.unfinished:
                with server.passing_failures():
                    if self.look():
                        on_change()
                time.sleep(LOOK_EVERY)
        finally:
            for cell in self.unfinished:
                if cell.run_id:
                    with server.passing_failures():
                        cancel(self.client, cell.run_id, "the comparison was stopped")
        if self.failed:
            lines = [f"{cell}: {reason}" for cell, reason in self.failed.items()]
            raise Code.RUN_FAILED.error(lines)

    def look(self) -> bool:
        """Submit what has no run, and note what started or ended; return whether anything did."""
        before = [(cell.state, cell.machine) for cell in self.cells]
        if self.deployment is None:
            deployment = deploy(self.client)
            self._follow_earlier_runs()
            self.deployment = deployment
        for cell in self.unfinished:
            if cell.run_id is None:
                self._submit(cell, self.deployment)
        online = online_workers(self.client)
        runs = read_runs(self.client, [cell.run_id for cell in self.unfinished if cell.run_id])
        for cell in [*self.unfinished]:
            run = runs.get(cell.run_id) if cell.run_id else None
            self._update(cell, run, online)
        self._warn_if_nobody_works()
        return before != [(cell.state, cell.machine) for cell in self.cells]

    def _follow_earlier_runs(self) -> None:
        """Follow the runs that a killed comparison left, and cancel those that are not wanted."""
        cells = {str(cell.key): cell for cell in self.unfinished}
        for run in runs_of_comparisons(self.client):
            cell = cells.get(run.name)
            if cell and not cell.run_id and cell.parameters == run.parameters:
                cell.run_id = run.id
                self.log.info("%s: was submitted by an earlier comparison", cell.key)
            else:
                cancel(self.client, run.id, "no comparison waits for this run")

    def _submit(self, cell: Cell, deployment: UUID) -> None:
        """Submit a cell, one that was lost or failed before all others."""
        attempt = cell.losses + cell.failures
        run = self.client.create_flow_run_from_deployment(
            deployment,
            parameters=cell.parameters,
            name=str(cell.key),
            tags=["dopsd", TAG, self.id],
            state=Scheduled(scheduled_time=self.started) if attempt else None,
            idempotency_key=f"{self.id}/{cell.key}/{attempt}",  # if an answer is lost
        )
        cell.run_id = run.id

    def _update(self, cell: Cell, run: FlowRun | None, online: set[str]) -> None:
        state = run.state if run else None
        kind = state.type if state else StateType.CRASHED  # someone has deleted it
        reason = (state.message if state else "") or kind.value.lower()
        if run:
            cell.machine = str(run.labels.get(WORKER, ""))
        if kind in (StateType.PENDING, StateType.RUNNING) and run:
            self._at_work(cell, run, online)
        elif kind is StateType.COMPLETED:
            self._end(cell, "done")
            count = sum(cell.state == "done" for cell in self.cells)
            self.log.info(
                "%s: done on %s (%d of %d)", cell.key, cell.machine, count, len(self.cells)
            )
        elif kind is StateType.CANCELLED:
            self._end(cell, "cancelled", is_failure=True)
        elif kind is StateType.FAILED:
            cell.failures += 1
            self.log.error("%s: %s: %s", cell.key, cell.machine, reason)
            self._try_again(cell, cell.failures < FAILURES, reason)
        elif kind is StateType.CRASHED:
            cell.losses += 1
            self.log.warning(
                "%s: %s: %s; another machine continues", cell.key, cell.machine, reason
            )
            self._try_again(cell, cell.losses < LOSSES, f"lost {cell.losses} times: {reason}")

    def _at_work(self, cell: Cell, run: FlowRun, online: set[str]) -> None:
        """Give a run up whose worker has been offline for long; the flow notices when it is back.

        Prefect itself would leave the run as running.
        """
        if run.state_type == StateType.RUNNING and cell.state != "at work":
            cell.state = "at work"
            self.log.info("%s: at work on %s", cell.key, cell.machine)
        if cell.machine in online:
            self.away.pop(run.id, None)
        elif time.monotonic() - self.away.setdefault(run.id, time.monotonic()) > AWAY:
            message = "the machine does not answer any more"
            self.client.set_flow_run_state(run.id, Crashed(message=message), force=True)

    def _try_again(self, cell: Cell, is_worthwhile: bool, reason: str) -> None:
        if is_worthwhile:
            cell.run_id, cell.state = None, f"waits again; {reason}"
        else:
            self._end(cell, reason, is_failure=True)

    def _end(self, cell: Cell, state: str, is_failure: bool = False) -> None:
        cell.state = state
        self.unfinished.remove(cell)
        if is_failure:
            self.failed[str(cell.key)] = f"{state} (on {cell.machine})" if cell.machine else state

    def _warn_if_nobody_works(self) -> None:
        if any(cell.state == "at work" for cell in self.unfinished):
            self.idle_since = time.monotonic()
        elif time.monotonic() - self.idle_since > WARN_EVERY:
            self.idle_since = time.monotonic()
            self.log.warning(
                "%d runs wait for a machine: none is free; `make up SERVER=...` joins one",
                len(self.unfinished),
            )


def have_joined(client: SyncPrefectClient) -> bool:
    """Tell whether machines have joined this server."""
    try:
        client.read_work_pool(POOL)
    except ObjectNotFound:
        return False
    return True


def deploy(client: SyncPrefectClient) -> UUID:
    """Create or update dopsd/cell, whose runs work in the folder of the worker that takes them."""
    return client.create_deployment(
        client.create_flow_from_name("dopsd"),
        DEPLOYMENT,
        work_pool_name=POOL,
        job_variables={"working_dir": "."},
        path=".",
        pull_steps=[{"prefect.deployments.steps.set_working_directory": {"directory": "."}}],
        entrypoint="flows/train.py:train",
        tags=["dopsd"],
        enforce_parameter_schema=False,
    )


def online_workers(client: SyncPrefectClient) -> set[str]:
    """Return the names of the machines whose workers report to the server."""
    workers = client.read_workers_for_work_pool(POOL, limit=PAGE)
    return {worker.name for worker in workers if worker.status == WorkerStatus.ONLINE}


def read_runs(client: SyncPrefectClient, ids: list[UUID]) -> dict[UUID, FlowRun]:
    """Return flow runs by id."""
    runs: dict[UUID, FlowRun] = {}
    for start in range(0, len(ids), PAGE):
        only = FlowRunFilter(id={"any_": ids[start : start + PAGE]})
        runs |= {run.id: run for run in client.read_flow_runs(flow_run_filter=only, limit=PAGE)}
    return runs


def runs_of_comparisons(client: SyncPrefectClient) -> list[FlowRun]:
    """Return the runs of comparisons that have neither ended nor been asked to."""
    over = {"not_any_": [*TERMINAL_STATES, StateType.CANCELLING]}
    only = FlowRunFilter(state={"type": over}, tags={"all_": [TAG]})
    runs: list[FlowRun] = []
    while True:
        page = client.read_flow_runs(flow_run_filter=only, limit=PAGE, offset=len(runs))
        runs += page
        if len(page) < PAGE:
            return runs


def cancel(client: SyncPrefectClient, run_id: UUID, reason: str) -> None:
    """Ask a run to save and end; one that has not begun ends at once."""
    client.set_flow_run_state(run_id, Cancelling(message=reason))


def hold_back(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """Let a machine on which a run failed take no more runs while others work.

    Otherwise a machine on which all runs fail at once would use up those of a comparison. If the
    run fails on a second machine too, the machine is not at fault and takes runs again.

    Args:
        flow: Not used; Prefect calls this when a run of it failed.
        flow_run: The run that failed; only those of comparisons are meant.
        state: Not used.
    """
    if TAG not in flow_run.tags:
        return
    flow_run_logger(flow_run).warning(
        "this machine takes no more runs while others work; repair it"
    )
    with get_client(sync_client=True) as client:
        is_suspect = True
        while is_suspect:
            time.sleep(HOLD_EVERY)
            with server.passing_failures():
                is_suspect = _may_be_at_fault(client, flow_run)


def _may_be_at_fault(client: SyncPrefectClient, run: FlowRun) -> bool:
    """Tell whether other machines work, and none of them has failed with this run."""
    state = {"type": {"any_": [StateType.RUNNING]}}
    working = FlowRunFilter(state=state, tags={"all_": [TAG]})
    state = {"type": {"any_": [StateType.FAILED]}}
    failed = FlowRunFilter(name={"any_": [run.name]}, state=state, tags={"all_": run.tags})
    return bool(client.read_flow_runs(flow_run_filter=working, limit=1)) and (
        len(client.read_flow_runs(flow_run_filter=failed, limit=FAILURES)) < FAILURES
    )
