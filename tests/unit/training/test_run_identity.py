"""What changed settings or code do to a run that has begun: nothing is lost or mixed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import ROOT, stop_in, write_params

from dopsd.algorithms.registry import ALGORITHMS
from dopsd.cli.main import main
from dopsd.config.loading import load_params
from dopsd.config.tasks import AlgorithmsConfig
from dopsd.core.files import digest, write_json
from dopsd.core.fingerprint import sha256
from dopsd.training import resume
from dopsd.training.machine import MACHINE, write_machine
from dopsd.training.run_identity import code_of, identify
from dopsd.training.trainer import Trainer

OUT = Path("runs/sudoku/d_opsd/0/train")


@pytest.fixture(autouse=True)
def nobody_has_answered(monkeypatch):
    monkeypatch.delenv("DOPSD_OTHER_CODE", raising=False)


def train(*words: str) -> int:
    return main(["train", *words])


def result(method: str = "d_opsd") -> dict[str, str]:
    """Digests of all that the stage leaves for others."""
    run_key = Path("runs/sudoku") / method / "0"
    files = [path for path in sorted(run_key.rglob("*")) if path.is_file()]
    return {str(path.relative_to(run_key)): sha256(path) for path in files}


def scratch(method: str = "d_opsd") -> Path:
    return identify(load_params().run("sudoku", method, 0)).folder


@pytest.fixture
def undisturbed(project):
    """What a run of these settings gives that nothing went before."""

    def run(**changes: object) -> dict[str, str]:
        write_params(**changes)
        Path("work").rename("work.kept")
        assert train() == 0
        found = result()
        shutil.rmtree("work")
        Path("work.kept").rename("work")
        shutil.rmtree("runs")
        return found

    Path("work").mkdir(exist_ok=True)
    return run


@pytest.fixture
def updates(monkeypatch) -> list[int]:
    """The updates that are learnt, in this process."""
    found, step = [], Trainer.accumulate
    counted = lambda self: found.append(self.update + 1) or step(self)  # noqa: E731
    monkeypatch.setattr(Trainer, "accumulate", counted)
    return found


def test_more_updates_continue_and_fewer_take_what_there_is(undisturbed, updates):
    five, seven, four = (undisturbed(train__updates=n) for n in (5, 7, 4))
    updates.clear()
    for n, whole, learnt in (
        (5, five, [1, 2, 3, 4, 5]),
        (7, seven, [6, 7]),
        (4, four, []),
        (7, seven, []),
        (5, five, []),
    ):
        write_params(train__updates=n)
        assert train() == 0
        assert (result(), updates) == (whole, learnt)
        updates.clear()


@pytest.mark.full
def test_fewer_updates_where_no_checkpoint_is_are_learnt_again_beside_the_longer_run(
    undisturbed, updates, capsys
):
    six, three = undisturbed(train__updates=6), undisturbed(train__updates=3)
    write_params(train__updates=6)
    assert train() == 0
    updates.clear()
    write_params(train__updates=3)
    assert train() == 0
    assert (result(), updates) == (three, [1, 2, 3])  # step 2 had lost its optimizer
    said = "has more updates, but no checkpoint that a run of 3 updates can start from"
    assert said in capsys.readouterr().err
    updates.clear()
    write_params(train__updates=6)
    assert train() == 0
    assert (result(), updates) == (six, [])


@pytest.mark.parametrize(
    "changes",
    [
        {"train__micro_batch_states": 3},
        {"sampling__batch_size": 2},
        {"train__gradient_checkpointing": True},
    ],
)
def test_what_changes_memory_alone_continues_and_takes_effect(
    project, monkeypatch, updates, changes
):
    write_params(train__updates=4)
    stop_in(monkeypatch, 2)
    assert train() == 130
    updates.clear()
    write_params(train__updates=4, **changes)
    seen, step = [], Trainer.accumulate
    sized = lambda self: seen.append(self.micro_batches.size) or step(self)  # noqa: E731
    monkeypatch.setattr(Trainer, "accumulate", sized)
    assert train() == 0
    assert updates == [2, 3, 4] and set(seen) == {changes.get("train__micro_batch_states", 64)}


def test_checkpoints_more_often_or_more_seldom_continue(undisturbed, updates, capsys):
    seldom = undisturbed(train__updates=8, train__checkpoint_every=4)
    write_params(train__updates=8)
    assert train() == 0
    updates.clear()
    write_params(train__updates=8, train__checkpoint_every=4)
    assert train() == 0
    assert (result(), updates) == (seldom, [])
    write_params(train__updates=9, train__checkpoint_every=3)
    capsys.readouterr()
    assert train() == 0
    names = sorted(path.name for path in OUT.iterdir())
    assert updates == [9] and names == ["checkpoints.json", "step-000006", "step-000009"]
    line = "no checkpoints of updates 3: the other run did not make them (train.checkpoint_every)"
    assert line + " or no longer has them (checkpoints.keep)" in capsys.readouterr().err


def test_another_cell_takes_only_what_it_would_have_kept_itself(project, updates):
    variants = {
        "default": {},
        "often": {"train": {"updates": 2, "checkpoint_every": 1}},
        "same": {"train": {"updates": 2}},
    }
    write_params(ablate__variants=variants, ablate__tables={})
    assert train() == 0
    updates.clear()
    assert train("--method", "d_opsd-often") == 0
    names = sorted(p.name for p in Path("runs/sudoku/d_opsd-often/0/train").iterdir())
    assert updates == [1, 2] and names == ["checkpoints.json", "step-000001", "step-000002"]
    assert train("--method", "d_opsd-same") == 0
    assert updates == [1, 2]


def test_what_decides_the_updates_is_another_run(project):
    before = scratch().name.rpartition("-")[0]
    others = [
        {"train__learning_rate": 5e-4},
        {"train__grad_clip": 0.1},
        {"sampling__steps": 10},
        {"model__prompt_style": "instructions"},
        {"train__schedule": "cosine"},
        {"data__sudoku__scoring": "strict"},
        {"train__prompts_per_collect": 3},
        {"train__collapse_window": 3},
        {"train__stop_on_collapse": True},
        {"train__max_empty_collects": 3},
        {"train__reuse": 2},
    ]
    for changes in others:
        write_params(**changes)
        assert scratch().name.rpartition("-")[0] != before, changes
    write_params(train__schedule="cosine")
    before = scratch().name.rpartition("-")[0]
    write_params(train__schedule="cosine", train__updates=5)
    assert scratch().name.rpartition("-")[0] != before


@pytest.mark.parametrize("method", [*AlgorithmsConfig.model_fields])
def test_only_methods_that_plan_for_their_length_are_named_by_it(project, method):
    text = (ROOT / "dopsd/algorithms" / method / "algorithm.py").read_text()
    config = ALGORITHMS.config_class(method)
    assert ("context.updates" in text) == ("depends_on_length" in vars(config))
    own = {f"method__{method}__train": {"schedule": "constant"}}
    write_params(**own)
    before = scratch(method).name.rpartition("-")[0]
    write_params(train__updates=5, **own)
    assert (scratch(method).name.rpartition("-")[0] != before) == config().depends_on_length


def test_a_base_that_was_moved_is_the_same_base(project):
    before = scratch()
    shutil.copytree("base/sudoku", "elsewhere")
    write_params(model__path="elsewhere")
    assert scratch() == before


@pytest.fixture
def other_code(trained):
    """A run of four updates that code of another day has begun, and nothing else in work/."""
    path = scratch() / "run.json"
    record = json.loads(path.read_text())
    for name in ("dopsd.core", "dopsd.rollout", "dopsd.training"):
        record["code"][name] = 0
    record["history"][0]["code"] = "before"
    write_json(path, record)
    return scratch()


def test_other_code_stops_and_says_what_changed_and_both_ways_out(other_code, updates, capsys):
    capsys.readouterr()
    assert train() == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    other = "trained by other code (dopsd.core and 2 more changed)"
    assert f"{other_code} is at update 4, {other}" in line
    assert "--continue" in line and "--anew" in line and "DOPSD_OTHER_CODE=continue" in line
    write_params(train__updates=6)
    assert train() == 2 and not updates  # a longer run is asked about before it begins


def test_other_code_continues_when_a_person_says_so_and_its_history_is_kept(other_code, updates):
    write_params(train__updates=6)
    assert train("--continue") == 0
    assert updates == [5, 6]
    history = json.loads((scratch() / "run.json").read_text())["history"]
    assert [entry["update"] for entry in history] == [0, 4]
    assert [entry["code"] == "before" for entry in history] == [True, False]
    made = json.loads(OUT.with_suffix(".json").read_text())
    assert made["first_code"] == "before" and made["code"] == history[1]["code"]
    assert (
        identify(load_params().run("sudoku", "d_opsd", 0)).first_code == "before"
    )  # names MLflow's run
    assert train() == 0 and updates == [5, 6]  # asked once


def test_a_finished_run_writes_its_outputs_again_without_torch(trained):
    before, record = result(), OUT.with_suffix(".json")
    record.unlink()
    code = "import sys; sys.modules['torch'] = None; from dopsd.cli.main import main; "
    code += "sys.exit(main(['train']))"
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code], env=env, check=True)
    assert result() == before and record.is_file()


@pytest.mark.parametrize("is_flag", [True, False])
def test_anew_starts_at_zero_once_and_sets_aside_what_was_learnt(
    other_code, updates, monkeypatch, capsys, is_flag
):
    if not is_flag:
        monkeypatch.setenv("DOPSD_OTHER_CODE", "anew")
    words = ["--anew"] * is_flag
    for _ in range(2):  # a job that is queued again does not lose what it had
        assert train(*words) == 0 and updates == [1, 2, 3, 4]
    (aside,) = Path("work/aside").iterdir()
    assert (aside / "step-000004").is_dir() and str(aside) in capsys.readouterr().err
    assert main(["clean"]) == 0 and not any(Path("work/aside").iterdir()) and scratch().is_dir()


def test_a_word_that_is_no_answer_is_refused(project, monkeypatch, capsys):
    monkeypatch.setenv("DOPSD_OTHER_CODE", "yes")
    assert train() == 2
    said = "DOPSD_OTHER_CODE: yes: unknown; there is stop, continue, anew"
    assert said in capsys.readouterr().err


def test_where_nothing_was_learnt_nothing_is_asked(other_code, updates):
    for step in other_code.glob("step-*"):
        shutil.rmtree(step)
    assert train() == 0 and updates == [1, 2, 3, 4]


def test_without_run_json_the_code_is_unknown(other_code, capsys):
    (other_code / "run.json").write_text('{"code')
    assert train() == 2
    assert "no run.json tells which" in capsys.readouterr().err
    assert train("--continue") == 0


def test_clean_keeps_other_lengths_of_the_run(trained):
    short = scratch()
    write_params(train__updates=6)
    assert main(["clean"]) == 0 and short.is_dir()
    write_params(train__updates=6, train__learning_rate=5e-4)
    assert main(["clean"]) == 0 and not short.exists()


def test_a_log_that_is_damaged_before_the_first_checkpoint_is_made_again(undisturbed, updates):
    whole = undisturbed()
    assert train() == 0
    for step in scratch().glob("step-*"):
        shutil.rmtree(step)
    log = scratch() / "log.jsonl"
    first, *rest = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(first + b"\xff" + b"".join(rest))
    updates.clear()
    assert train() == 0
    assert (result(), updates) == (whole, [1, 2, 3, 4])


def test_a_damaged_log_ends_at_the_damage(tmp_path):
    row = b'{"loss": 1.0, "update": 1}\n'
    log = tmp_path / "log.jsonl"
    odd = row.replace(b" 1}", b' "1"}'), row.replace(b"date", b"dat\xe5")
    for damaged in (b"\xff\n", b'{"updatf": 2}\n', b"[2]\n", *odd):
        log.write_bytes(row + damaged + row)
        assert resume._rows(log) == [json.loads(row)]


@pytest.mark.parametrize("damaged", ['{"fingerpr', "[1]", '{"fingerprinu": "x"}'])
def test_a_damaged_record_of_the_cell_itself_names_no_first_code(project, damaged):
    OUT.parent.mkdir(parents=True)
    OUT.with_suffix(".json").write_text(damaged)
    found = identify(load_params().run("sudoku", "d_opsd", 0)).first_code
    assert found == digest(code_of("sudoku", "d_opsd"))


def test_the_record_of_the_machine_has_the_commit_and_whether_files_differ_from_it(here):
    def git(*words: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@localhost")
        return subprocess.check_output(("git", *who, *words), text=True).strip()

    def commit(update: int) -> str:
        write_machine(here, SimpleNamespace(is_main_process=True), update, ["cpu"])
        return json.loads((here / MACHINE).read_text())["parts"][-1]["commit"]

    git("init", "-q")
    Path("code.py").write_text("1\n")
    git("add", "code.py")
    git("commit", "-qm", "first")
    head = git("rev-parse", "HEAD")
    assert commit(0) == head
    Path("code.py").write_text("2\n")
    assert commit(1) == f"{head}+"
