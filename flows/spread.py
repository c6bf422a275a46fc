"""Spread the cells of a comparison (task x method x seed) over the machines that joined.

Each machine works on one cell at a time. A cell whose machine is lost goes to another one, which
continues from the newest checkpoint in `checkpoints.remote`.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import StateType

from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError
from flows import server
from flows.comparison_cells import Cell, Started
from flows.machines import Machine, is_busy, machines, start, stop, unfinished
from flows.standing import Standing

LOOK_EVERY = 3.0  # seconds
WARN_EVERY = 300.0  # seconds
# seconds that a machine may be away for the server, which counts 90 itself, and forgets all workers
# when it was stopped for longer
AWAY = 60.0
ATTEMPTS = 4  # of a cell that was lost with its machine
ENDED = (StateType.COMPLETED, StateType.FAILED, StateType.CRASHED, StateType.CANCELLED)
Log = logging.Logger | logging.LoggerAdapter[logging.Logger]


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
        self.standing = Standing()
        self.away: dict[str, float] = {}  # by machine at work: since when it is away
        self.refused: dict[str, str] = {}  # reason by machine that gets no runs
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
        before = self._counts()
        self._adopt()
        for started in [*self.working.values()]:
            self._follow(started, there.get(started.machine))
        able = {
            machine.name
            for machine in there.values()
            if machine.version == self.version
            and (machine.is_there or machine.name in self.working)
        }
        self._give_up(able)
        for machine in there.values():
            if self._is_free(machine, able) and (cell := self._next(machine.name, able)):
                self._start(cell, machine)
        self._say_if_nobody_works()
        return self._counts() != before

    def _counts(self) -> tuple[int, ...]:
        return (len(self.waiting), len(self.working), len(self.done), len(self.refused))

    def _adopt(self) -> None:
        """Follow runs that a killed comparison, or a lost answer of the server, left unfollowed.

        One that is none of these cells, or no longer wanted, is stopped.
        """
        known = {started.run_id for started in self.working.values()}
        for run in unfinished(self.client):
            if run.id in known:
                continue
            cell = next(
                (
                    c
                    for c in self.waiting
                    if (str(c.key), c.parameters) == (run.name, run.parameters)
                ),
                None,
            )
            if cell is None or run.machine in self.working:
                stop(self.client, run.id, "no comparison waits for this run")
                continue
            self._note(cell, run.machine, run.id)
            self.log.info("%s: is at work on %s already", cell.key, run.machine)

    def _is_free(self, machine: Machine, able: set[str]) -> bool:
        if not machine.is_there or machine.name in self.working or not self.waiting:
            return False
        why = ""
        if machine.version != self.version:
            why = (
                f"has other code ({machine.version}, here {self.version}) and gets no runs; there:"
                " `git checkout params.yaml dvc.lock`, `git pull`, `make down`,"
                " `make up SERVER=...`"
            )
        elif not self.standing.is_fit(machine.name, able):
            why = (
                "failed several times in a row and gets no more runs while others work; repair it,"
                " and start the comparison again, which keeps what is done"
            )
        if why:
            if self.refused.get(machine.name) != why:
                self.log.warning("%s %s", machine.name, why)
            self.refused[machine.name] = why
            return False
        self.refused.pop(machine.name, None)
        return not is_busy(self.client, machine)

    def _next(self, name: str, able: set[str]) -> Cell | None:
        """Return the next cell for a machine; one that failed waits for a machine that did not."""
        for cell in self.waiting:
            if name in cell.failures:
                continue
            if cell.failures and self.standing.has_better(name, able - cell.failures.keys()):
                continue
            return cell
        return None

    def _start(self, cell: Cell, machine: Machine) -> None:
        run = start(self.client, machine, cell.parameters, f"{cell.key}")
        self._note(cell, machine.name, run.id)
        self.log.info("%s: started on %s", cell.key, machine.name)

    def _note(self, cell: Cell, machine: str, run_id: UUID) -> None:
        self.waiting.remove(cell)
        cell.attempts += 1
        self.working[machine] = Started(cell, machine, run_id)

    def _follow(self, started: Started, machine: Machine | None) -> None:
        state = self.client.read_flow_run(started.run_id).state
        kind, cell, name = state.type if state else StateType.CRASHED, started.cell, started.machine
        is_there = machine is not None and machine.is_there
        if kind not in ENDED:
            if is_there:
                self.away.pop(name, None)
            elif machine and machine.is_stopped:
                stop(self.client, started.run_id, "the machine was stopped; another one continues")
                self._again(started, "was stopped")
            elif time.monotonic() - self.away.setdefault(name, time.monotonic()) > AWAY:
                stop(self.client, started.run_id, "the machine was lost; another one continues")
                self._again(started, "does not answer any more")
            return
        if kind is StateType.CRASHED:
            if is_there:
                self.standing.count(name)
            self._again(started, "lost the run")
            return
        del self.working[name]
        self.away.pop(name, None)
        if kind is StateType.COMPLETED:
            self.done[str(cell.key)] = name
            self.standing.clear(name)
            self.log.info("%s: done on %s (%d of %d)", cell.key, name, len(self.done), self.total)
        elif kind is StateType.CANCELLED:
            self.failed[str(cell.key)] = f"cancelled (on {name})"
        else:
            reason = (state.message if state else "") or kind.value.lower()
            cell.failures[name] = reason
            self.standing.count(name)
            self.log.error("%s: %s: %s", cell.key, name, reason)
            self.waiting.appendleft(cell)

    def _give_up(self, able: set[str]) -> None:
        """Give up cells that failed on two machines, or on all that are there."""
        fit = {name for name in able if self.standing.is_fit(name, able)}
        for cell in [*self.waiting]:
            if len(cell.failures) > 1:  # not the machines' fault
                self.standing.forgive(cell.failures)
            elif not fit or not fit <= cell.failures.keys():
                continue
            self.waiting.remove(cell)
            name, reason = [*cell.failures.items()][-1]
            self.failed[str(cell.key)] = f"{reason} (on {name})"

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
