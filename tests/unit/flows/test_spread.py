"""Cells of a comparison over machines: who gets what, and what becomes of a lost machine's cell."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID, uuid4

import httpx
import pytest
from conftest import write_params
from prefect.client.schemas.objects import StateType

from dopsd.config.loading import load_params
from dopsd.config.profiles import AS_IT_STANDS
from dopsd.core.errors import DopsdError
from dopsd.core.fingerprint import checkout_digest
from dopsd.core.paths import RunKey
from dopsd.pipeline import run_request
from dopsd.pipeline.run_request import PARAMS, RunRequest
from flows import compare, spread, train
from flows.comparison_cells import Cell
from flows.machines import Machine, UnfinishedRun
from flows.spread import Spread

CODE = "abc"


class Server:
    """What Spread sees of Prefect: machines, and the states of the runs that it started."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        self.machines = {name: Machine(name, uuid4(), CODE, True) for name in names}
        self.states: dict[UUID, SimpleNamespace] = {}
        self.started: list[tuple[str, str]] = []  # cell and machine
        self.runs: dict[str, UUID] = {}  # the last run of a machine
        self.stopped: list[UUID] = []
        self.busy: set[str] = set()
        monkeypatch.setattr(spread, "machines", lambda client: [*self.machines.values()])
        monkeypatch.setattr(spread, "is_busy", lambda client, machine: machine.name in self.busy)
        monkeypatch.setattr(spread, "start", self.start)
        self.left: list[UnfinishedRun] = []  # by an earlier comparison
        monkeypatch.setattr(spread, "unfinished", lambda client: self.left)
        monkeypatch.setattr(spread, "stop", lambda client, run_id, why: self.stopped.append(run_id))
        monkeypatch.setattr(spread, "LOOK_EVERY", 0.0)

    def start(self, client: object, machine: Machine, parameters: dict, name: str) -> object:
        run_id = self.runs[machine.name] = uuid4()
        self.started.append((name, machine.name))
        self.states[run_id] = SimpleNamespace(type=StateType.RUNNING, message="")
        return SimpleNamespace(id=run_id)

    def read_flow_run(self, run_id: UUID) -> object:
        return SimpleNamespace(state=self.states[run_id])

    def end(self, machine: str, state: StateType, message: str = "") -> None:
        self.states[self.runs[machine]] = SimpleNamespace(type=state, message=message)

    def lose(self, machine: str) -> None:
        self.machines[machine] = replace(self.machines[machine], is_there=False)


def cells(count: int) -> list[Cell]:
    return [Cell(RunKey("sudoku", "rft", seed), {}) for seed in range(count)]


def of(server: Server, count: int) -> Spread:
    return Spread(server, cells(count), CODE, logging.getLogger("test"))


def test_each_free_machine_gets_one_cell_and_the_next_when_it_is_done(monkeypatch):
    server = Server(monkeypatch, "a", "b")
    server.busy = {"b"}  # with somebody's own run
    work = of(server, 2)
    assert work.look() and server.started == [("sudoku/rft/0", "a")]
    assert not work.look()
    server.end("a", StateType.COMPLETED)
    work.look()
    assert server.started[1:] == [("sudoku/rft/1", "a")] and work.done == {"sudoku/rft/0": "a"}


def test_a_lost_machines_cell_goes_first_to_another_and_its_own_run_is_told_to_end(monkeypatch):
    server = Server(monkeypatch, "a", "b")
    work = of(server, 3)
    work.look()
    lost = server.runs["a"]
    server.lose("a")
    monkeypatch.setattr(spread, "AWAY", -1.0)
    work.look()
    server.end("b", StateType.COMPLETED)
    work.look()
    assert server.stopped == [lost]
    assert server.started[2:] == [("sudoku/rft/0", "b")]


def test_a_stopped_machines_cell_goes_on_at_once(monkeypatch, caplog):
    server = Server(monkeypatch, "a", "b")
    work = of(server, 1)
    work.look()
    server.machines["a"] = replace(server.machines["a"], is_there=False, is_stopped=True)
    work.look()
    assert server.started == [("sudoku/rft/0", "a"), ("sudoku/rft/0", "b")]
    assert "sudoku/rft/0: a was stopped; another machine continues" in caplog.text


def test_machines_are_not_lost_while_the_server_forgets_them_after_its_restart(monkeypatch):
    server = Server(monkeypatch, "a", "b")
    work = of(server, 2)
    work.look()
    there = dict(server.machines)
    server.lose("a")
    server.lose("b")
    work.look()
    server.machines = there  # their workers have reported
    work.look()
    assert not server.stopped and not work.away and len(server.started) == 2


def test_a_crashed_run_is_tried_again_but_not_for_ever(monkeypatch):
    server = Server(monkeypatch, "a")
    work = of(server, 1)
    for _ in range(spread.ATTEMPTS):
        work.look()
        server.end("a", StateType.CRASHED)
    with pytest.raises(DopsdError, match="sudoku/rft/0: lost 4 times, last on a"):
        work.run()
    assert len(server.started) == spread.ATTEMPTS


def test_a_failure_is_kept_for_the_end_and_the_others_go_on(monkeypatch):
    server = Server(monkeypatch, "a")
    work = of(server, 2)
    work.look()
    server.end("a", StateType.FAILED, "train: no space left")
    work.look()
    server.end("a", StateType.COMPLETED)
    with pytest.raises(DopsdError, match=r"sudoku/rft/0: train: no space left \(on a\)"):
        work.run()
    assert work.done == {"sudoku/rft/1": "a"}


def test_a_machine_that_fails_alone_does_not_eat_the_cells(monkeypatch):
    server = Server(monkeypatch, "a", "b")
    work = of(server, 5)
    work.look()
    for _ in range(2):  # the base is not on a
        server.end("a", StateType.FAILED, "model.path: no such folder")
        work.look()
    for _ in range(5):
        server.end("b", StateType.COMPLETED)
        work.look()
    assert work.done == {f"sudoku/rft/{seed}": "b" for seed in range(5)} and not work.failed
    assert [machine for _, machine in server.started].count("a") == 2


def played(server: Server, count: int, is_broken: Callable[[str, str], StateType | None]) -> Spread:
    """Play a comparison in which good runs take as long as three broken ones.

    Args:
        server: The server.
        count: Number of cells.
        is_broken: How a cell ends on a machine at once; None: well, later.
    """
    work = of(server, count)
    for moment in range(40 * count):
        if not work.waiting and not work.working:
            return work
        work.look()
        for name, started in work.working.items():
            bad = is_broken(str(started.cell.key), name)
            if bad or moment % 3 == 0:
                server.end(name, bad or StateType.COMPLETED, "broken" if bad else "")
    raise AssertionError((work.waiting, work.working))


def test_runs_that_fail_everywhere_take_no_machine_from_the_others(monkeypatch):
    server = Server(monkeypatch, *"abcdefgh")
    bad = {str(cell.key) for cell in cells(18)}
    work = played(server, 72, lambda cell, _: StateType.FAILED if cell in bad else None)
    assert work.failed.keys() == bad and len(work.done) == 54


@pytest.mark.parametrize("end", [StateType.FAILED, StateType.CRASHED])
def test_machines_on_which_all_fails_at_once_leave_the_runs_to_others(monkeypatch, end):
    server = Server(monkeypatch, *"abcde")
    work = played(server, 12, lambda _, machine: end if machine in "ab" else None)
    assert not work.failed and {*work.done.values()} <= {*"cde"} and len(work.done) == 12
    assert [machine in "ab" for _, machine in server.started].count(True) <= 4


def test_the_only_machine_tries_all_and_names_each_reason(monkeypatch):
    server = Server(monkeypatch, "a")
    work = played(server, 6, lambda cell, _: StateType.FAILED if cell[-1] in "0123" else None)
    assert work.failed == {f"sudoku/rft/{seed}": "broken (on a)" for seed in range(4)}
    assert work.done == {"sudoku/rft/4": "a", "sudoku/rft/5": "a"}


def test_a_run_whose_start_the_server_did_not_answer_is_started_again(monkeypatch):
    server = Server(monkeypatch, "a")
    work, begin = of(server, 1), server.start

    def unanswered(*_: object) -> object:
        monkeypatch.setattr(spread, "start", begin)
        raise httpx.ReadError("gone")

    monkeypatch.setattr(spread, "start", unanswered)
    with pytest.raises(httpx.ReadError):
        work.look()
    work.look()
    assert server.started == [("sudoku/rft/0", "a")]


def test_runs_of_a_killed_comparison_are_followed_or_stopped_but_not_started_twice(monkeypatch):
    server = Server(monkeypatch, "a", "b")
    wanted, other = uuid4(), uuid4()
    server.left = [
        UnfinishedRun(wanted, "sudoku/rft/1", "b", {}),
        UnfinishedRun(other, "sudoku/rft/0", "a", {"max_updates": 3}),
    ]
    server.states[wanted] = SimpleNamespace(type=StateType.RUNNING, message="")
    work = of(server, 2)
    work.look()
    assert server.stopped == [other] and server.started == [("sudoku/rft/0", "a")]
    server.left, server.runs["b"] = [], wanted
    server.end("b", StateType.COMPLETED)
    work.look()
    assert work.done == {"sudoku/rft/1": "b"}


def test_nothing_is_given_up_while_another_machine_at_work_is_away_for_a_moment(monkeypatch):
    server = Server(monkeypatch, "a", "b")
    work = of(server, 3)
    work.look()
    server.lose("b")
    server.end("a", StateType.FAILED, "no weights")
    work.look()
    server.machines["b"] = replace(server.machines["b"], is_there=True)
    server.end("b", StateType.COMPLETED)
    work.look()
    assert not work.failed and server.started[-1] == ("sudoku/rft/0", "b")


def test_a_cell_that_a_person_cancelled_is_not_started_again(monkeypatch):
    server = Server(monkeypatch, "a", "b")
    work = of(server, 1)
    work.look()
    server.end("a", StateType.CANCELLED)
    with pytest.raises(DopsdError, match=r"sudoku/rft/0: cancelled \(on a\)"):
        work.run()
    assert len(server.started) == 1 and not work.standing.failures


def test_a_machine_with_other_code_gets_nothing_and_is_named_once(monkeypatch, caplog):
    server = Server(monkeypatch, "a")
    server.machines["a"] = replace(server.machines["a"], version="old")
    work = of(server, 1)
    assert work.look() and not work.look() and not server.started and "a" in work.refused
    assert [r.message for r in caplog.records if "a has other code (old, here abc)" in r.message]
    assert len(caplog.records) == 1


def test_an_interrupted_comparison_leaves_no_run_behind(monkeypatch):
    server = Server(monkeypatch, "a", "b")
    work = of(server, 2)

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work.run(interrupt)
    assert {*server.stopped} == {*server.runs.values()}


def test_settings_as_they_stand_mean_the_same_on_another_machine(project):
    write_params(train__updates=7)
    mine = load_params()
    asked = compare.portable(RunRequest(AS_IT_STANDS, methods=["rft"], seeds=[4]))
    PARAMS.unlink()
    assert asked.profile == "embedded" and asked.overrides["train.updates"] == 7
    there = run_request.check(asked, can_retrain=True)
    assert there.train == mine.train and there.data == mine.data and there.method == mine.method
    assert there.matrix.methods == ["rft"]


def test_a_base_that_a_run_would_train_is_refused_where_machines_joined(project):
    with pytest.raises(DopsdError, match="allow_retrain: runs on other machines need the same"):
        compare.elsewhere(None, [], {"allow_retrain": True})


def test_a_machine_whose_code_changed_since_it_joined_refuses_the_run(project):
    train.require_code(None)
    train.require_code(checkout_digest(Path.cwd()))
    with pytest.raises(DopsdError, match=r"this machine has other code \(\w+, the comparison 0"):
        train.require_code("0123")
