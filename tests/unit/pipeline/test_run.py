"""`dopsd run`: what it shows, live and in plain lines, and what is asked, checked before it is
submitted.
"""

import io
import json
import os
import re
import sys
from pathlib import Path

import pytest
from conftest import write_params
from rich.console import Console

from dopsd.config.loading import load_params, read_yaml
from dopsd.config.profiles import AS_IT_STANDS
from dopsd.core.errors import DopsdError
from dopsd.core.paths import RunKey
from dopsd.pipeline.run import local as local_run
from dopsd.pipeline.run import view as run_view
from dopsd.pipeline.run.local import LocalRun, LoggedCommand
from dopsd.pipeline.run.request import PARAMS, RunRequest, check, parsed, write
from dopsd.pipeline.run.view import Display, RunView, Stage, newest_accuracy, stage_progress


def texts(view: RunView, height: int = 40, footer: str = "") -> list[str]:
    console = Console(file=io.StringIO(), width=100, record=True)
    console.print(run_view.render_view(view, height, footer))
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_the_view_shows_state_bar_rate_time_left_accuracy_and_links():
    cell, note = "sudoku/d_opsd/0", "25 of 100, 0.50/s, 2:30 left"
    trains = Stage(f"train {cell}", run_view.RUNNING, 65.0, 0.25, note)
    stages = [Stage("prepare sudoku", run_view.CACHED, 3.0), trains, Stage(f"test {cell}")]
    view = RunView("amber-lynx", "running", 3700, stages, "update 25: 61.2% [58.1, 64.3]")
    view.links = {"Prefect": "http://127.0.0.1:4200/runs/flow-run/1", "MLflow": ""}
    shown = texts(view, footer="Ctrl-C leaves")
    assert shown[0] == "run amber-lynx  running  1:01:40"
    assert shown[1].split() == ["✔", "prepare", "sudoku", "0:03", "up", "to", "date"]
    assert "1:05" in shown[2] and shown[2].endswith("25 of 100, 0.50/s, 2:30 left")
    assert shown[2].count("━") == 24 // 4 and "train sudoku/d_opsd/0" in shown[2]
    assert shown[3] == "· test sudoku/d_opsd/0"
    assert shown[4:] == [
        "  accuracy   update 25: 61.2% [58.1, 64.3]",
        "  Prefect    http://127.0.0.1:4200/runs/flow-run/1",
        "Ctrl-C leaves",
    ]


def test_a_long_matrix_keeps_the_running_stage_in_sight():
    stages = [Stage(f"s{i}", run_view.DONE) for i in range(50)]
    stages += [Stage("now", run_view.RUNNING), *(Stage(f"s{i}") for i in range(49))]
    before, shown, after = run_view.window(stages, 12)
    assert (before, len(shown), after) == (47, 10, 43) and shown[3].name == "now"
    assert run_view.window(stages[:50], 12)[::2] == (40, 0)  # all are done: the last ones
    assert run_view.window(stages[:5], 12) == (0, stages[:5], 0)
    lines = texts(RunView("r", "running", 1, stages), height=22)
    assert "47 finished stages above" in lines[1] and "43 more stages" in lines[-1]
    assert len(lines) <= 22


def test_without_a_terminal_each_change_is_a_line_and_nothing_is_repeated():
    out = io.StringIO()
    display = Display("Ctrl-C leaves", Console(file=out, width=40))
    stage, view = Stage("train a"), RunView("r", "pending", links={"log": "one.log"})
    view.stages = [stage]
    display.show(view)
    stage.state, stage.seconds, stage.note, view.state = run_view.RUNNING, 1.0, "1 of 9", "running"
    view.links = {"log": "two.log"}
    display.show(view)
    stage.seconds = 2.0
    display.show(view)
    stage.state, stage.seconds, view.accuracy = run_view.DONE, 62.0, "64.3% [58, 70] on 9 problems"
    display.show(view, is_last=True)
    assert out.getvalue().splitlines() == [
        "run: r: pending",
        "log: one.log",
        "run: r: running",
        "train a: running",
        "train a: done after 1:02",
        "accuracy: 64.3% [58, 70] on 9 problems",
    ]


def test_progress_lines_come_at_most_every_ten_seconds(monkeypatch):
    out, now = io.StringIO(), [0.0]
    monkeypatch.setattr(run_view.time, "monotonic", lambda: now[0])
    display = Display(console=Console(file=out))
    view = RunView("r", "running", stages=[Stage("train a", run_view.RUNNING, 0.0, 0.1, "1 of 9")])
    for second in range(0, 25, 5):
        now[0] = float(second)
        display.show(view)
    assert out.getvalue().splitlines().count("train a: 1 of 9") == 2


def test_the_stages_of_a_run_follow_from_its_settings(project):
    write_params(matrix__seeds=[0, 1], tracking__enabled=True)
    names = run_view.expected_stages(load_params())
    first = [f"{name} sudoku" for name in ("prepare", "pretrain", "base")]
    assert names[:4] == [*first, "train sudoku/d_opsd/0"]
    assert names[7:9] == ["report sudoku/d_opsd/0", "train sudoku/d_opsd/1"]
    assert len(names) == 3 + 2 * 5 + 1 and names[-1] == "publish"


def test_names_of_dvc_become_those_of_the_view():
    keys = [RunKey("sudoku", "d_opsd", 0), RunKey("sudoku", "d_opsd-live_teacher", 11)]
    assert run_view.dvc_stage("train@sudoku-d_opsd-live_teacher-11", keys) == (
        "train sudoku/d_opsd-live_teacher/11"
    )
    assert run_view.dvc_stage("evaluate_base@sudoku", keys) == "base sudoku"
    assert run_view.dvc_stage("mine", keys) == "mine"


def test_progress_and_accuracy_of_an_earlier_run_are_not_shown(here, monkeypatch):
    Path("work/eval").mkdir(parents=True)
    state = Path("work/train.json")
    state.write_text(json.dumps({"done": 3, "total": 12, "rate": 0.5, "steps": 2}))
    report = {"accuracy": 0.6123, "interval": [0.581, 0.6434], "n": 256}
    for name, split, changed in (("a", "validation", 50), ("b", "validation", 90), ("c", "x", 99)):
        path = Path(f"work/eval/{name}.json")
        path.write_text(json.dumps({"value": report | {"split": split}, "digest": ""}))
        os.utime(path, (changed, changed))
    os.utime(state, (100, 100))
    assert stage_progress("train", 100)[:2] == (0.25, "3 of 12, 0.50/s, 0:18 left")
    state.write_text(json.dumps({"done": 1, "total": 12, "rate": 0.1, "steps": 1}))
    assert stage_progress("train", 0).text == "1 of 12, 0.10/s"  # a rate with the start-up
    os.utime(state, (100, 100))
    assert stage_progress("train", 101) is None and stage_progress("test", 0) is None
    opened, read = [], Path.read_text
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", lambda path, **_: opened.append(path.stem) or read(path))
        assert newest_accuracy("validation", 60) == "61.2% [58.1, 64.3] on 256 validation problems"
        assert newest_accuracy("validation", 91) == "" and "a" not in opened
    Path("work/eval/d.json").write_text("{")  # written by another program, or cut off
    assert newest_accuracy("validation", 60) == "61.2% [58.1, 64.3] on 256 validation problems"


def test_the_newest_log_is_one_of_this_run(here):
    old, new = run_view.new_log("repro"), run_view.new_log("publish")
    for path, changed in ((old, 10), (new, 20)):
        path.touch()
        os.utime(path, (changed, changed))
    assert run_view.newest_log(5) == str(new) and run_view.newest_log(21) == ""


def test_the_output_of_a_stage_gives_reason_exit_code_and_what_was_saved():
    stopped = "dopsd: train: interrupted by SIGINT; saved at update 41 in work/train-a-b; the same"
    lines = ["Running stage 'train@a':", stopped, "ERROR: failed: train@a, exited with 130"]
    assert run_view.saved_line(lines) == "saved at update 41 in work/train-a-b"
    assert run_view.reason(lines) == stopped.removeprefix("dopsd: ")
    assert run_view.reason([]) == "no output" and run_view.saved_line(["all is well"]) == ""
    assert (run_view.exit_code(lines), run_view.exit_code([])) == (130, 0)
    assert [run_view.clock(s) for s in (0, 65.9, 3600)] == ["0:00", "1:05", "1:00:00"]


def test_a_look_reads_what_the_command_has_written_since_the_last_one(here):
    command = LoggedCommand("repro")
    line = "Stage 'prüfen':\n".encode()
    command.path.write_bytes(b"one\ntwo\n" + line[:9])  # in the middle of a letter
    assert command.new_lines() == ["one", "two"]
    with command.path.open("r+b") as log:
        log.write(b"\n" * 8)  # a reader of the whole file would return its lines again
        log.seek(0, os.SEEK_END)
        log.write(line[9:] + b"three")
    assert command.new_lines() == ["Stage 'prüfen':"] and command.new_lines() == []
    assert command.lines == [""] * 8 + ["Stage 'prüfen':"]


def test_a_stage_that_ran_stays_done_when_a_later_part_finds_it_unchanged(here):
    write_params()
    run, command = LocalRun(load_params()), LoggedCommand("repro")
    said = "Running stage 'prepare@sudoku':\n"
    for name in ("pretrain", "prepare"):
        said += f"Stage '{name}@sudoku' didn't change, skipping\n"
    command.path.write_text(said)
    run._read(command)
    states = {name: stage.state for name, stage in run.stages.items()}
    assert states["prepare sudoku"] == "done" and states["pretrain sudoku"] == "up to date"


def test_the_command_ends_with_a_view_that_fails(here, monkeypatch):
    class Endless(LoggedCommand):
        def __init__(self, name: str) -> None:
            super().__init__(name)
            self.words = [sys.executable, "-c", "import time; time.sleep(600)"]

    def broken(*_: object, **__: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(local_run, "LoggedCommand", Endless)
    monkeypatch.setattr(Display, "show", broken)
    write_params()
    run = LocalRun(load_params())
    with pytest.raises(BrokenPipeError):
        run.run()
    assert run.process is not None
    try:
        assert run.process.poll() is not None
    finally:
        run.process.kill()
        run.process.wait()


def asked(**overrides: object) -> RunRequest:
    return RunRequest(AS_IT_STANDS, overrides=overrides)


def test_changes_of_the_command_line_become_json_values_by_key():
    changes = ["train.updates=5", "matrix.seeds=[0, 1]", "train.updates=7", "tracking.uri=null"]
    assert parsed(changes) == {"train.updates": 7, "matrix.seeds": [0, 1], "tracking.uri": None}
    for change in ("train.updates", "=5", "train.updates=[5"):
        with pytest.raises(DopsdError, match="--set"):
            parsed([change])


WRONG = {
    "train.updats": (5, "train.updats: unknown key; did you mean updates?"),
    "train.updates": ("x", "train.updates: Input should be a valid integer, found 'x'"),
    "matrix.methods": (["d_ops"], "did you mean d_opsd?"),
    "data.sudoku.prompt_file": ("data/external/no.txt", "not read with model.prompt_style compact"),
    "data.sudoku.model": ({"path": "base/no"}, "base/no/config.json: no such file in"),
    "train": ({"updtes": 2}, "train.updtes: unknown key; did you mean updates?"),
    "method": ({"d_opsd": {"train": {"lora": 4}}}, "method.d_opsd.train.lora"),
    "matrix": ([1], "matrix: "),
    "sampling": (None, "sampling: "),
}


@pytest.mark.parametrize("key", WRONG)
def test_a_request_is_checked_as_params_yaml_is_and_nothing_is_written(project, key):
    before = Path("params.yaml").read_bytes()
    value, message = WRONG[key]
    with pytest.raises(DopsdError, match=re.escape(message)) as refused:
        check(asked(**{key: value}))
    assert refused.value.exit_code == 2
    assert Path("params.yaml").read_bytes() == before and not Path("work").exists()


@pytest.mark.parametrize(
    ("overrides", "single"),
    [
        ({"train": {"lora": {"r": 3}, "updates": 2}}, {"train.lora.r": 3, "train.updates": 2}),
        ({"method": {"d_opsd": {"train": {"updates": 3}}}}, {"method.d_opsd.train.updates": 3}),
        (
            {"evaluate": {"protocols": {"greedy": {"batch_size": 5}}}},
            {"evaluate.protocols.greedy.batch_size": 5},
        ),
        ({"sampling": {}}, {}),
        (
            {"ablate": {"variants": {"default": {}}, "tables": {"a": ["default"]}}},
            {"ablate.variants": {"default": {}}, "ablate.tables": {"a": ["default"]}},
        ),
        ({"matrix": {"tasks": ["sudoku"], "seeds": [3]}}, {"matrix.seeds": [3]}),
    ],
)
def test_a_section_among_the_overrides_keeps_what_it_does_not_name(project, overrides, single):
    variants = {"default": {}, "other": {"attempts": 2}}
    write_params(ablate__variants=variants, ablate__tables={"b": ["default"]}, ablate__run=[])
    found = check(asked(**overrides))
    assert found == check(asked(**single))
    before = read_yaml(PARAMS)["train"].keys()
    write(asked(**overrides))
    assert load_params() == found and read_yaml(PARAMS)["train"].keys() == before


def test_a_request_without_a_profile_starts_from_params_yaml(project):
    write_params(train__updates=9, method__diffu_grpo__train__updates=5)
    assert check(asked()).train.updates == 9
    params = check(RunRequest(AS_IT_STANDS, seeds=[3], max_updates=2))
    assert (params.train.updates, params.matrix.seeds) == (2, [3])
    assert params.method.diffu_grpo.train.updates == 2
    with pytest.raises(DopsdError, match="need a profile"):
        check(RunRequest(AS_IT_STANDS, hardware="4x80gb"))
    Path("params.yaml").unlink()
    with pytest.raises(DopsdError, match="run this in the project's folder"):
        check(asked())


@pytest.mark.parametrize(
    ("changes", "pretrained"),
    [
        ({"task": "countdown"}, []),  # its problems alone are prepared, and its base is there
        ({"overrides": {"matrix.tasks": ["chains", "sudoku"]}}, ["sudoku"]),
        ({"overrides": {"matrix.tasks": ["chains"], "pretrain.tasks": ["chains"]}}, ["chains"]),
    ],
)
def test_only_tasks_of_the_matrix_keep_a_base_that_is_made_here(project, changes, pretrained):
    assert check(RunRequest(**changes), can_retrain=True).pretrain.tasks == pretrained
