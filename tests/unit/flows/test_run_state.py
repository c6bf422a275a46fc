"""A run on Prefect's server as the view shows it: task runs become stages."""

import json
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

from prefect.client.schemas.objects import Artifact, State, StateType, TaskRun

from dopsd.pipeline.run import view as run_view
from flows.watching import accuracy_of, stages_of

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
KEY = "sudoku/d_opsd/0"


def task(
    task_name: str, kind: str, start: int | None, end: int | None = None, **state: str
) -> TaskRun:
    """A task run that began and ended so many seconds after noon."""
    at = [None if s is None else NOON + timedelta(seconds=s) for s in (start, end)]
    full = State(type=StateType[kind], **state)
    facts = {"state": full, "state_type": full.type, "state_name": full.name}
    facts |= {"start_time": at[0], "end_time": at[1]}
    return TaskRun(id=uuid4(), name=task_name, task_key="t", dynamic_key="0", **facts)


def rows(tasks: list[TaskRun], *expected: str, bars: dict[UUID, Artifact] | None = None) -> dict:
    stages = stages_of(tasks, bars or {}, list(expected))
    return {s.name: (s.state, s.seconds if s.state == "done" else None, s.note) for s in stages}


def test_tasks_fill_the_expected_stages_and_keep_their_order():
    tasks = [
        task("settings", "COMPLETED", 0, 2),
        task("prepare sudoku", "COMPLETED", 2, 4, name="Cached"),
        task(f"train {KEY}", "RUNNING", 4),
        task("select-4f1", "PENDING", None),
    ]
    bar = Artifact(type="progress", data=25.0, description="train: 25 of 100, 0.5/s, 2:30 left")
    found = rows(
        tasks, "settings", "prepare sudoku", f"train {KEY}", "publish", bars={tasks[2].id: bar}
    )
    assert found == {
        "settings": (run_view.DONE, 2.0, ""),
        "prepare sudoku": (run_view.CACHED, None, ""),
        f"train {KEY}": (run_view.RUNNING, None, "25 of 100, 0.5/s, 2:30 left"),
        "publish": (run_view.WAITING, None, ""),
    }


def test_evaluations_of_checkpoints_are_one_stage_of_the_run_that_was_trained_before():
    tasks = [
        task(f"train {KEY}", "COMPLETED", 0, 10),
        task("evaluate 25", "COMPLETED", 10, 20),
        task("evaluate 50", "COMPLETED", 10, 30),
        task("train sudoku/rft/0", "COMPLETED", 30, 40),
        task("evaluate 25", "FAILED", 40, 50),
        task("evaluate-7ab", "PENDING", None),
    ]
    found = rows(tasks)
    assert found[f"evaluate {KEY}"] == (run_view.DONE, 20.0, "")
    assert found["evaluate sudoku/rft/0"] == (run_view.FAILED, None, "0 of 2")
    tasks[4] = task("evaluate 25", "COMPLETED", 40, 50)
    assert rows(tasks)["evaluate sudoku/rft/0"][2].startswith("1 of 2, ")


def test_a_failed_task_and_one_that_waits_for_another_attempt_say_so():
    tasks = [
        task("base sudoku", "FAILED", 0, 1),
        task(f"train {KEY}", "SCHEDULED", 1, name="AwaitingRetry"),
    ]
    assert rows(tasks) == {
        "base sudoku": (run_view.FAILED, None, ""),
        f"train {KEY}": (run_view.WAITING, None, "failed; waits for another attempt"),
    }


def test_the_accuracy_is_that_of_the_last_evaluation_or_of_the_selected_checkpoint():
    first, last = "update 25: 61.2% [58, 64]", "update 50: 60.1% [57, 63]"
    tasks = [
        task("evaluate 50", "COMPLETED", 10, 30, message=last),
        task("evaluate 25", "COMPLETED", 10, 20, message=first),
    ]
    assert accuracy_of(tasks, []) == last and accuracy_of([], []) == ""
    row = {"update": 25, "accuracy %": "61.2", "95% interval": "58.0 to 64.0"}
    row["problems"] = "256 validation"
    table = Artifact(
        key="checkpoints-sudoku-d-opsd-0",
        type="table",
        data=json.dumps([row | {"note": "base"}, row | {"note": "selected"}]),
        created=NOON + timedelta(seconds=40),
    )
    selected = "update 25, selected: 61.2% [58.0, 64.0] on 256 validation problems"
    assert accuracy_of(tasks, [table]) == selected
    later = task("evaluate 25", "COMPLETED", 50, 60, message="update 25: 70.0% [68, 72]")
    assert accuracy_of([*tasks, later], [table]) == "update 25: 70.0% [68, 72]"
    cached = task("evaluate 25", "COMPLETED", 5, 6, name="Cached", message="up to date")
    assert accuracy_of([cached], []) == ""
