"""Cells of a comparison over machines: what is submitted, and what becomes of lost ones."""

import logging
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID, uuid4

import httpx
import pytest
from conftest import write_params
from deployed import prefect_server
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.states import Completed, Failed, Running

from dopsd.config.loading import load_params
from dopsd.config.profiles import AS_IT_STANDS
from dopsd.core.errors import DopsdError
from dopsd.core.fingerprint import checkout_digest
from dopsd.core.paths import RunKey
from dopsd.pipeline.run import request as run_request
from dopsd.pipeline.run.request import PARAMS, RunRequest
from flows import compare, machines, train
from flows.machines import Cell, Cells


class Server:
    """What Cells sees of Prefect: runs in the order of their submission, and workers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *online: str) -> None:
        self.online, self.runs, self.cancelled = {*online}, {}, []
        self.left: list[SimpleNamespace] = []  # runs of an earlier comparison
        monkeypatch.setattr(machines, "deploy", lambda client: uuid4())
        monkeypatch.setattr(machines, "online_workers", lambda client: self.online)
        monkeypatch.setattr(machines, "read_runs", lambda client, ids: self.runs)
        monkeypatch.setattr(machines, "runs_of_comparisons", lambda client: self.left)
        monkeypatch.setattr(machines, "cancel", lambda client, id_, why: self.cancelled.append(id_))
        monkeypatch.setattr(machines, "LOOK_EVERY", 0.0)

    def create_flow_run_from_deployment(self, deployment: UUID, **facts: object) -> object:
        state = facts.pop("state") or SimpleNamespace(type=StateType.SCHEDULED, message="")
        return self.add(SimpleNamespace(state=state, **facts))

    def add(self, run: SimpleNamespace) -> SimpleNamespace:
        run.id, run.labels, run.state_type = uuid4(), {}, run.state.type
        self.runs[run.id] = run
        return run

    def leave(self, name: str, **parameters: object) -> None:
        """A run of an earlier comparison goes on."""
        state = SimpleNamespace(type=StateType.RUNNING, message="")
        self.left.append(self.add(SimpleNamespace(name=name, parameters=parameters, state=state)))

    def set_flow_run_state(self, run_id: UUID, state: State, force: bool) -> None:
        run = self.runs[run_id]
        run.state, run.state_type = state, state.type

    def newest(self, name: str) -> SimpleNamespace:
        return [run for run in self.runs.values() if run.name == name][-1]

    def set(self, name: str, kind: StateType, machine: str, message: str = "") -> None:
        run = self.newest(name)
        run.labels = {machines.WORKER: machine}
        run.state, run.state_type = SimpleNamespace(type=kind, message=message), kind


def cells(count: int) -> list[Cell]:
    return [Cell(RunKey("sudoku", "rft", seed), {}) for seed in range(count)]


def of(server: Server, count: int) -> Cells:
    work = Cells(server, cells(count), logging.getLogger("test"))
    work.look()
    return work


ONE = "sudoku/rft/0"


def test_all_cells_are_submitted_once_and_the_others_go_on_if_one_fails_twice(monkeypatch):
    server = Server(monkeypatch, "a")
    work = of(server, 2)
    assert not work.look() and [run.name for run in server.runs.values()] == [ONE, "sudoku/rft/1"]
    server.set(ONE, StateType.FAILED, "a", "train: no space left")
    server.set("sudoku/rft/1", StateType.COMPLETED, "a")
    assert work.look()
    work.look()
    again = server.newest(ONE)
    assert len(server.runs) == 3 and again.state.state_details.scheduled_time == work.started
    server.set(ONE, StateType.FAILED, "b", "train: no space left")
    with pytest.raises(DopsdError, match=r"sudoku/rft/0: train: no space left \(on b\)"):
        work.run()
    assert [cell.state for cell in work.cells][1] == "done" and len(server.runs) == 3


def test_the_run_of_a_lost_machine_is_given_up_and_submitted_again(monkeypatch, caplog):
    server = Server(monkeypatch, "a", "b")
    work = of(server, 1)
    server.set(ONE, StateType.RUNNING, "a")
    work.look()
    server.online = {"b"}
    work.look()
    server.online = {"a", "b"}  # a server that started again had forgotten its workers
    work.look()
    assert not work.away
    server.online = {"b"}
    monkeypatch.setattr(machines, "AWAY", -1.0)
    lost = server.newest(ONE)
    work.look()
    assert lost.state_type == StateType.CRASHED  # its flow sees that, and saves
    work.look()
    work.look()
    assert server.newest(ONE) is not lost and len(server.runs) == 2
    assert f"{ONE}: a: the machine does not answer any more; another machine continues" in (
        caplog.text
    )


@pytest.mark.parametrize(
    ("kind", "times", "said"),
    [
        (StateType.CRASHED, machines.LOSSES, "lost 4 times: killed"),
        (StateType.CANCELLED, 1, "cancelled"),  # by a person
    ],
)
def test_a_run_that_crashes_again_and_again_or_was_cancelled_is_given_up(
    monkeypatch, kind, times, said
):
    server = Server(monkeypatch, "a")
    work = of(server, 1)
    for _ in range(times):
        server.set(ONE, kind, "a", "killed" if times > 1 else "")
        work.look()
        if work.unfinished:
            work.look()
    with pytest.raises(DopsdError, match=rf"sudoku/rft/0: {said} \(on a\)"):
        work.run()
    assert len(server.runs) == times


def test_runs_of_a_killed_comparison_are_followed_or_cancelled_but_not_started_twice(monkeypatch):
    server = Server(monkeypatch, "a", "b")
    server.leave(ONE)
    server.leave("sudoku/rft/1", max_updates=3)
    server.leave(ONE)
    wanted, other, double = server.left
    work = of(server, 2)
    assert server.cancelled == [other.id, double.id]
    newest = server.newest("sudoku/rft/1").id
    assert [cell.run_id for cell in work.cells] == [wanted.id, newest]
    assert len(server.runs) == 4


def test_a_request_without_an_answer_is_made_again_with_the_same_key(monkeypatch):
    server, keys = Server(monkeypatch, "a"), []
    submit = server.create_flow_run_from_deployment

    def unanswered(deployment: UUID, **facts: object) -> object:
        keys.append(facts["idempotency_key"])
        if len(keys) == 1:
            raise httpx.ReadError("gone")
        return submit(deployment, **facts)

    server.create_flow_run_from_deployment = unanswered
    work = Cells(server, cells(1), logging.getLogger("test"))
    with pytest.raises(httpx.ReadError):
        work.look()
    work.look()
    assert keys[0] == keys[1] and len(server.runs) == 1


def test_an_interrupted_comparison_leaves_no_run_behind(monkeypatch):
    server = Server(monkeypatch, "a", "b")
    work = Cells(server, cells(2), logging.getLogger("test"))
    for cell in cells(2):
        server.leave(str(cell.key))

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work.run(interrupt)
    assert server.cancelled == [*server.runs]


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


def test_a_machine_with_other_code_refuses_the_run(project):
    train.require_code(None)
    train.require_code(checkout_digest(Path.cwd()))
    with pytest.raises(DopsdError, match=r"this machine has other code \(\w+, the comparison 0"):
        train.require_code("0123")


@flow(name="dopsd")
def empty() -> None:
    """Stand for the flow; nothing runs here."""


@pytest.mark.full  # starts a server
def test_prefect_knows_the_runs_and_a_machine_that_failed_holds_back_while_others_work(
    prefect_database: Path,
):
    log = logging.getLogger("test")
    with prefect_server(prefect_database), get_client(sync_client=True) as client:
        assert not machines.have_joined(client)
        client.create_work_pool(WorkPoolCreate(name=machines.POOL, type="process"))
        assert machines.have_joined(client) and machines.online_workers(client) == set()
        killed, work = Cells(client, cells(2), log), Cells(client, cells(3), log)
        killed.look()
        assert work.look() is False and len(machines.runs_of_comparisons(client)) == 3
        first = [cell.run_id for cell in killed.cells]
        assert [cell.run_id for cell in work.cells][:2] == first
        runs = machines.read_runs(client, [cell.run_id for cell in work.cells])
        assert {run.work_pool_name for run in runs.values()} == {machines.POOL}
        machines.cancel(client, first[1], "not wanted")
        work.look()
        assert work.failed == {"sudoku/rft/1": "cancelled"}  # at once, since it had not begun
        other = work.cells[2].run_id
        client.set_flow_run_state(first[0], Failed(message="no weights"), force=True)
        failed = client.read_flow_run(first[0])
        assert not machines._may_be_at_fault(client, failed)  # nobody else works
        client.set_flow_run_state(other, Running(), force=True)
        assert machines._may_be_at_fault(client, failed)
        again = submitted_again(client, work, killed.id)
        assert machines._may_be_at_fault(client, failed)
        client.set_flow_run_state(again.id, Failed(), force=True)
        assert not machines._may_be_at_fault(client, failed)  # but the run
        client.set_flow_run_state(other, Completed(), force=True)
        machines.hold_back(empty, client.read_flow_run(other).model_copy(update={"tags": []}), None)


def submitted_again(client: object, work: Cells, comparison: str) -> FlowRun:
    """Second run of the first cell, as if the same comparison had submitted both."""
    work.look()
    work.look()
    run = client.read_flow_run(work.cells[0].run_id)
    assert abs(run.expected_start_time - work.started) < timedelta(seconds=1)  # before others
    client.update_flow_run(run.id, tags=["dopsd", machines.TAG, comparison])
    return run
