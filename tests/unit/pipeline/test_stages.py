"""The embedded default in one process: every stage by its command, then what a person reads."""

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from conftest import small_params, write_params
from toys import save_toy

from dopsd.cli.main import main
from dopsd.config.loading import load_params
from dopsd.core.fingerprint import sha256
from dopsd.core.tables import read_table
from dopsd.pipeline.stages.prepare import changed_since
from dopsd.training.run_identity import identify

CELL = Path("runs/sudoku/d_opsd/0")
CURVE = CELL / "curve.csv"
WEIGHTS = Path("base/sudoku/model.safetensors")


def test_every_stage_leaves_its_results(finished, capsys, monkeypatch):
    curve = read_table(CELL / "curve.csv")
    assert [row["update"] for row in curve] == [0, 2, 4]
    assert all(row["low"] <= row["accuracy"] <= row["high"] for row in curve)
    base = json.loads(Path("runs/sudoku/base.json").read_text())["greedy"]
    numbers = {"accuracy", "low", "high", "whole", "n", "steps"}
    assert base.keys() == numbers | {"published", "strict", "valid_grid", "measured_on"}
    assert base["accuracy"] == curve[0]["accuracy"]
    found = json.loads((CELL / "evaluate.json").read_text())
    best = max(row["accuracy"] for row in curve[1:])
    assert found["best"] == best and found["base"] == curve[0]["accuracy"]
    firsts = [row["update"] for row in curve[1:] if row["accuracy"] == best]
    assert found["best_update"] == firsts[0]
    chosen = json.loads((CELL / "best" / "select.json").read_text())
    assert chosen["update"] == found["best_update"] and chosen["split"] == "validation"
    paired = json.loads((CELL / "test" / "paired.json").read_text())["protocols"]["greedy"]
    gap = paired["best"]["accuracy"] - paired["base"]["accuracy"]
    assert paired["paired"]["difference"] == pytest.approx(gap) and paired["base"]["n"] == 12
    trajectory = json.loads((CELL / "test" / "trajectory.json").read_text())
    assert len(trajectory["tokens"]) == 40 and len(trajectory["shown"]) == 20
    for name in ("accuracy", "training", "trajectory"):
        assert Path(f"reports/sudoku/d_opsd/0/{name}.png").stat().st_size > 5000
    grids = [f"{100 * paired[s]['figures']['valid_grid']:.1f}%" for s in ("base", "best")]
    for columns in ("80", "30"):  # of a log that is not a terminal
        monkeypatch.setenv("COLUMNS", columns)
        assert main(["summary"]) == 0
        screen = capsys.readouterr().out
        for said in (
            "accuracy: mean share of an answer that is right",
            "whole grids right: {} before, {} after".format(*grids),
            f"checkpoint: update {chosen['update']} of 4\n",
            "adapter: runs/sudoku/d_opsd/0/best\n",
            f"{100 * gap:+.1f}",
        ):
            assert said in screen
        assert not {*"…;"} & {*screen}


def countdown(**model: object) -> None:
    """Settings of two tasks, of which the second has these keys of section model of its own."""
    raw = small_params(matrix__tasks=["sudoku", "countdown"], method__rft__keep="all")
    own = {"generate": 40, "validation": 4, "limit": 4, "model": model}
    raw["data"]["countdown"] |= own
    Path("params.yaml").write_text(yaml.safe_dump(raw))


@pytest.mark.full
def test_a_task_that_names_its_own_base_is_trained_and_evaluated_with_it(project, capsys, refusal):
    save_toy(Path("base/countdown"))
    config = Path("base/countdown/config.json")  # longer than other tests want their toy
    config.write_text(config.read_text().replace('_length": 64', '_length": 128'))
    Path("data/external").mkdir()
    rows = [{"input": "30,100,93", "output": "23"}] * 4
    Path("data/external/countdown.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in rows))
    countdown(path="base/countdown")
    assert main(["check"]) == 0
    Path("base/sudoku").rename("away")
    assert main(["prepare", "--task", "countdown"]) == 0
    for stage in ("evaluate_base", "verify_teacher"):
        assert main([stage, "--task", "countdown"]) == 0, stage
    for stage in ("train", "evaluate", "select", "test", "report"):
        assert main([stage, "--task", "countdown", "--method", "rft"]) == 0, stage
    run = load_params().run("countdown", "rft", 0)
    record = json.loads((identify(run).folder / "run.json").read_text())
    assert {name for name in record["inputs"] if name.startswith("base/")} == {
        path.as_posix() for path in Path("base/countdown").iterdir()
    }
    words = ["--merged", "--adapter", "runs/countdown/rft/0/best", "--out", "merged"]
    assert main(["export", "--task", "countdown", *words]) == 0
    capsys.readouterr()
    assert "model.path: no config.json in base/sudoku" in refusal("train")


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"path": "base/none"}, "data.countdown.model.path: base/none/config.json: no such file"),
        ({"path": "models/none"}, "data.countdown.model.path: expected a folder in base/"),
        ({"path": "base/../models"}, "data.countdown.model.path: expected a folder in base/"),
        ({"paht": "base/none"}, "data.countdown.model.paht: unknown key; did you mean path?"),
        ({"quantization": "nf4"}, "data.countdown.model: quantization: nf4 computes in bfloat16"),
    ],
)
def test_a_tasks_own_section_model_is_checked(project, refusal, own, said):
    Path("data/external").mkdir()
    Path("data/external/countdown.jsonl").touch()
    countdown(**own)
    (line,) = refusal("check").splitlines()
    assert said in line


def test_a_checkpoint_is_evaluated_alone_while_its_run_goes_on_and_then_only_collected(
    finished, monkeypatch, capsys, refusal
):
    shutil.rmtree("work/eval")
    before = (CELL / "curve.csv").read_bytes()
    shutil.rmtree(CELL / "train")  # not copied there yet: training goes on
    assert main(["evaluate", "--update", "4", "2"]) == 0
    said = re.findall(r"evaluate: done with checkpoint (\d): (\S+) ", capsys.readouterr().err)
    accuracies = {row["update"]: f"{100 * row['accuracy']:.1f}%" for row in read_table(CURVE)}
    assert said == [("4", accuracies[4]), ("2", accuracies[2])]
    assert main(["evaluate_base"]) == 0
    assert "--update 3: no step-000003 in work/train-" in refusal("evaluate", "--update", "3")
    assert main(["train"]) == 0  # it had ended: copies its checkpoints
    from dopsd.evaluation import evaluator

    monkeypatch.setattr(evaluator, "load_policy", None)
    assert main(["evaluate"]) == 0
    assert (CELL / "curve.csv").read_bytes() == before


@pytest.mark.full
def test_selection_uses_the_named_protocol_whatever_its_place(finished):
    first = small_params()["evaluate"]["protocols"]["greedy"]
    write_params(evaluate__protocols={"a_short": first | {"steps": 5}, "greedy": first})
    for stage in ("evaluate", "select", "test", "report"):
        assert main([stage]) == 0, stage
    paired = json.loads((CELL / "test" / "paired.json").read_text())
    assert paired["selected"]["protocol"] == "greedy" and len(paired["protocols"]) == 2
    shown = json.loads(Path("reports/sudoku/d_opsd/0/summary.json").read_text())
    assert shown["best"]["accuracy"] == paired["protocols"]["greedy"]["best"]["accuracy"]


def test_an_adapter_of_another_scaling_or_damage_is_refused(finished, refusal):
    write_params(train__lora=small_params()["train"]["lora"] | {"alpha": 8})
    assert "alpha 4 (train.lora gives 8)" in refusal("test")
    weights = CELL / "best" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])
    assert "not a whole safetensors file" in refusal("sample", "--adapter", str(CELL / "best"))
    base = Path("base/sudoku/model.safetensors")
    base.write_bytes(base.read_bytes()[:-9])
    assert "model.safetensors: not a whole safetensors file" in refusal("sample")


def test_selection_on_test_is_labelled(finished, capsys):
    write_params(select__split="test")
    assert main(["evaluate"]) == 0
    assert main(["select"]) == 0
    assert "ON THE TEST SET" in capsys.readouterr().err
    assert json.loads((CELL / "best" / "select.json").read_text())["split"] == "test"


def test_a_stage_says_which_one_must_come_first(project, capsys, refusal):
    assert main(["evaluate"]) == 2
    words = "--task sudoku --method d_opsd --seed 0"
    assert f"run `dopsd train {words}`" in capsys.readouterr().err
    for stage, first in (("select", "evaluate"), ("test", "select"), ("report", "test")):
        assert f"run `dopsd {first}`" in refusal(stage)
    assert "run `dopsd repro` first" in refusal("summary")
    Path("data/sudoku/train.jsonl").unlink()
    assert "data/sudoku/train.jsonl: no such file" in refusal("train")


def test_problems_of_other_settings_are_said_and_those_that_came_from_elsewhere_are_not(
    project, capsys
):
    assert main(["prepare"]) == 0
    assert main(["check"]) == 0
    assert "old problems" not in "".join(capsys.readouterr())
    write_params(data__sudoku__seed=4, data__sudoku__scoring="strict")
    assert main(["check"]) == 0
    note = "data.sudoku changed since `dopsd prepare --task sudoku`, and data/sudoku has the old"
    assert note in capsys.readouterr().out
    assert main(["evaluate_base"]) == 0
    assert f"warning: {note}" in capsys.readouterr().err
    problems = Path("data/sudoku/validation.jsonl")
    problems.write_text(problems.read_text().splitlines(keepends=True)[0])  # as DVC fetched others
    assert changed_since(load_params(), "sudoku") is None


def test_problems_of_watched_tasks_follow_their_settings(project):
    few = {"train": 64, "validation": 8, "test": 8}
    tests = Path("data/chains/test.jsonl")
    for size in (8, 5):
        write_params(evaluate__watch=["chains"], data__chains=few | {"test": size})
        assert main(["prepare"]) == 0
        assert len(tests.read_text().splitlines()) == size
    tests.write_text("")  # nothing changed: they stay
    assert main(["prepare"]) == 0 and not tests.read_text()


def test_a_malformed_row_is_named_by_file_and_line(project, capsys):
    path = Path("data/sudoku/validation.jsonl")
    lines = path.read_text().splitlines()
    problems = (
        {"prompt": "1", "answer": ""},
        {"prompt": "1"},
        {"prompt": "1", "answer": "2"},
        {"prompt": "1234341221434321", "answer": "1234341221434321"},  # no blank
    )
    for row in ('{"id": "a"', "7", *(json.dumps({"id": "a"} | row) for row in problems)):
        path.write_text("\n".join([*lines[:3], row, *lines[4:]]) + "\n")
        assert main(["evaluate_base"]) == 2, row
        assert "data/sudoku/validation.jsonl:4: " in capsys.readouterr().err, row


def test_sample_prints_every_step_and_the_verdict(project, capsys, refusal):
    assert main(["sample"]) == 0
    screen = capsys.readouterr().out
    assert screen.count("\n") >= 22 and "score" in screen
    assert main(["sample", "0234341221434320", "--temperature", "0.5"]) == 0
    assert "solution 1234341221434321" in capsys.readouterr().out
    assert "16 digits" in refusal("sample", "12")
    assert "nowhere: no adapter_config.json" in refusal("sample", "--adapter", "nowhere")


def test_an_answer_in_brackets_is_printed_as_it_is(project, capsys, monkeypatch):
    from dopsd.core.types import Score
    from dopsd.tasks.sudoku.task import Sudoku

    monkeypatch.setattr(Sudoku, "verify", lambda *_: Score("[/b] [red]", 0.0, False))
    assert main(["sample"]) == 0
    assert "answer [/b] [red]   score" in capsys.readouterr().out


def test_pretraining_continues_to_the_same_bytes_and_begins_anew_where_its_state_is_damaged(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    from dopsd.training.pretraining import pretrain

    step, updates, last = pretrain.Pretrainer.step, [], [12]

    def noting(self: pretrain.Pretrainer, update: int) -> object:
        if update == last[0]:
            raise SystemExit(9)
        updates.append(update)
        return step(self, update)

    monkeypatch.setenv("DOPSD_ALLOW_RETRAIN", "force")
    monkeypatch.setattr(pretrain, "SAVE_EVERY", 5)
    monkeypatch.setattr(pretrain.Pretrainer, "step", noting)
    write_params(pretrain__updates=12)
    assert main(["pretrain"]) == 0
    whole = sha256(WEIGHTS)
    updates.clear()
    last[0] = 8
    with pytest.raises(SystemExit):
        main(["pretrain"])
    (resume,) = Path("work").glob("pretrain-*/resume.safetensors")
    saved, last[0] = resume.read_bytes(), 12
    assert main(["pretrain"]) == 0
    assert updates == [*range(8), *range(5, 12)] and sha256(WEIGHTS) == whole
    half = len(saved) // 2
    for damaged in (saved[:half], saved[:half] + bytes([saved[half] ^ 64]) + saved[half + 1 :]):
        resume.parent.mkdir(exist_ok=True)
        resume.write_bytes(damaged)
        capsys.readouterr()
        updates.clear()
        assert main(["pretrain"]) == 0
        assert f"pretrain: {resume}: damaged; starting from update 0" in capsys.readouterr().err
        assert updates == [*range(12)] and sha256(WEIGHTS) == whole


def test_an_answer_that_does_not_fit_is_reported(project, refusal, monkeypatch):
    monkeypatch.setenv("DOPSD_ALLOW_RETRAIN", "1")
    write_params(
        sampling__gen_length=32, sampling__steps=16, method__d_opsd__updates_per_trajectory=1
    )
    assert "sampling.gen_length: 32 tokens cannot hold a solution of 36" in refusal("pretrain")
