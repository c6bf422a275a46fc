"""Spread the cells of a comparison (task x method x seed) over the machines that joined.

Each machine works on one cell at a time. A cell whose machine is lost goes to another one, which
continues from the newest checkpoint in `checkpoints.remote`.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import StateType

from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError
from dopsd.core.paths import RunKey
from flows import server
from flows.machines import Machine, is_busy, machines, start, stop

LOOK_EVERY = 3.0  # seconds
WARN_EVERY = 300.0  # seconds
# seconds that a machine may be away for the server, which counts 90 itself, and forgets all workers
# when it was stopped for longer
AWAY = 60.0
ATTEMPTS = 4  # of a cell that was lost with its machine
FAULTS = 2  # failures in a row after which a machine gets no more cells, and machines for a cell
ENDED = (StateType.COMPLETED, StateType.FAILED, StateType.CRASHED, StateType.CANCELLED)
Log = logging.Logger | logging.LoggerAdapter[logging.Logger]


@dataclass
class Cell:
    """One run of the comparison.

    Args:
        key: Task, method and seed.
        parameters: Parameters of a machine's training flow.
        attempts: How often it was started.
        failures: Reason by machine on which it failed.
    """

    key: RunKey
    parameters: dict[str, Any]
    attempts: int = 0
    failures: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Started:
    """A cell on a machine."""

    cell: Cell
    machine: str
    run_id: UUID


class Spread:
    """Gives cells to machines until all are done or have failed.

    Args:
        client: Client of Prefect's server.
        cells: The cells, in the order in which they start.
        version: Digest of this workspace's code; machines with other code get no cells.
        log: Where messages go.
    """

    def __init__(
        self, client: SyncPrefectClient, cells: list[Cell], version: str, log: Log
    ) -> None:
        self.client, self.version, self.log = client, version, log
        self.waiting, self.total = deque(cells), len(cells)
        self.working: dict[str, Started] = {}
        self.done: dict[str, str] = {}  # machine by cell
        self.failed: dict[str, str] = {}  # reason by cell
        self.faults: dict[str, int] = {}  # failures in a row by machine
        self.away: dict[str, float] = {}  # by machine at work: since when it is away
        self.told: set[str] = set()
        self.idle_since = time.monotonic()

    def run(self, on_change: Callable[[], None] = lambda: None) -> None:
        """Work until no cell waits or works; leave no run behind if interrupted.

        Args:
            on_change: Called after a cell started or ended.

        Raises:
            DopsdError: if cells failed; the others are done.
        """
        try:
            while self.waiting or self.working:
                with server.passing_failures():
                    if self.look():
                        on_change()
                time.sleep(LOOK_EVERY)
        finally:
            for started in self.working.values():
                with server.passing_failures():
                    stop(self.client, started.run_id, "the comparison was stopped")
        if self.failed:
            lines = [f"{cell}: {reason}" for cell, reason in self.failed.items()]
            raise DopsdError(lines, code=Code.RUN_FAILED)

    def look(self) -> bool:
        """Note what ended, and start cells on free machines; return whether anything changed."""
        there = {machine.name: machine for machine in machines(self.client)}
        before = (len(self.waiting), len(self.working), len(self.done))
        for started in [*self.working.values()]:
            self._follow(started, there.get(started.machine))
        for machine in there.values():
            cell = next((c for c in self.waiting if machine.name not in c.failures), None)
            if cell and self._is_free(machine):
                self.waiting.remove(cell)
                self._start(cell, machine)
        self._give_up([machine for machine in there.values() if machine.version == self.version])
        self._say_if_nobody_works()
        return (len(self.waiting), len(self.working), len(self.done)) != before

    def _is_free(self, machine: Machine) -> bool:
        if not machine.is_there or machine.name in self.working:
            return False
        if machine.version != self.version:
            self._tell(
                f"{machine.name} has other code ({machine.version}, here {self.version}) and gets"
                " no runs; there: `git checkout params.yaml dvc.lock`, `git pull`, `make down`,"
                " `make up SERVER=...`"
            )
            return False
        if self.faults.get(machine.name, 0) >= FAULTS:
            self._tell(
                f"{machine.name} failed {FAULTS} times in a row and gets no more runs; repair it,"
                " and start the comparison again, which keeps what is done"
            )
            return False
        return not is_busy(self.client, machine)

    def _start(self, cell: Cell, machine: Machine) -> None:
        cell.attempts += 1
        run = start(self.client, machine, cell.parameters, f"{cell.key}")
        self.working[machine.name] = Started(cell, machine.name, run.id)
        self.log.info("%s: started on %s", cell.key, machine.name)

    def _follow(self, started: Started, machine: Machine | None) -> None:
        state = self.client.read_flow_run(started.run_id).state
        kind, cell = state.type if state else StateType.CRASHED, started.cell
        if kind not in ENDED:
            if machine and machine.is_there:
                self.away.pop(started.machine, None)
            elif machine and machine.is_stopped:
                stop(self.client, started.run_id, "the machine was stopped; another one continues")
                self._again(started, "was stopped")
            elif time.monotonic() - self.away.setdefault(started.machine, time.monotonic()) > AWAY:
                stop(self.client, started.run_id, "the machine was lost; another one continues")
                self._again(started, "does not answer any more")
            return
        del self.working[started.machine]
        self.away.pop(started.machine, None)
        if kind is StateType.COMPLETED:
            self.done[str(cell.key)] = started.machine
            self.faults[started.machine] = 0
            self.log.info(
                "%s: done on %s (%d of %d)", cell.key, started.machine, len(self.done), self.total
            )
        elif kind is StateType.CANCELLED:
            self.failed[str(cell.key)] = f"cancelled (on {started.machine})"
        elif kind is StateType.CRASHED:
            self.working[started.machine] = started
            self._again(started, "lost the run")
        else:
            reason = (state.message if state else "") or kind.value.lower()
            cell.failures[started.machine] = reason
            self.faults[started.machine] = self.faults.get(started.machine, 0) + 1
            self.log.error("%s: %s: %s", cell.key, started.machine, reason)
            self.waiting.appendleft(cell)

    def _give_up(self, able: list[Machine]) -> None:
        """Give up cells that failed on enough machines, or that no machine is left for.

        Args:
            able: Machines with this code; those at work count even while they are away.
        """
        there = {m.name for m in able if m.is_there or m.name in self.working}
        fit = {name for name in there if self.faults.get(name, 0) < FAULTS}
        for cell in [*self.waiting]:
            if len(cell.failures) >= FAULTS or (there and fit <= cell.failures.keys()):
                self.waiting.remove(cell)
                reasons = ["every machine failed on other runs"]
                reasons += [f"{reason} (on {name})" for name, reason in cell.failures.items()]
                self.failed[str(cell.key)] = reasons[-1]

    def _again(self, started: Started, what: str) -> None:
        """Put a cell back, first in the queue, unless it was lost too often."""
        del self.working[started.machine]
        self.away.pop(started.machine, None)
        cell = started.cell
        if cell.attempts >= ATTEMPTS:
            self.failed[str(cell.key)] = f"lost {cell.attempts} times, last on {started.machine}"
            return
        self.waiting.appendleft(cell)
        self.log.warning("%s: %s %s; another machine continues", cell.key, started.machine, what)

    def _say_if_nobody_works(self) -> None:
        if self.working or not self.waiting:
            self.idle_since = time.monotonic()
        elif time.monotonic() - self.idle_since > WARN_EVERY:
            self.idle_since = time.monotonic()
            self.log.warning(
                "%d runs wait for a machine: none is free; `make up SERVER=...` joins one",
                len(self.waiting),
            )

    def _tell(self, message: str) -> None:
        if message not in self.told:
            self.told.add(message)
            self.log.warning(message)
