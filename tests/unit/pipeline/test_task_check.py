"""A task of params.yaml in commands: names, `dopsd task`, recipes.yaml, the forms of the flows."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import ROOT, small_params, write_params
from jsonschema import Draft202012Validator

from dopsd.cli.main import main
from dopsd.config.loading import load_params
from dopsd.config.params_file import params
from dopsd.core.files import write_json
from dopsd.core.fingerprint import recipe
from dopsd.core.paths import MLFLOW_PAGES
from dopsd.pipeline.recipes import recipes
from dopsd.tasks.common.sandbox import missing_sandbox
from dopsd.tasks.registry import TASKS, load_task

SECTION = {
    "type": "custom",
    "train": {"path": "data/external/rows.csv"},
    "validation": 2,
    "test": 2,
    "answer_format": {"tag": "answer"},
    "verifier": {"type": "number"},
}


def begin(project: Path, rows: str = "", **section: object) -> None:
    (project / "data/external").mkdir(exist_ok=True)
    rows = rows or "".join(f"1+{n}=,{n + 1}\n" for n in range(10))
    (project / "data/external/rows.csv").write_text(f"question,answer\n{rows}")
    write_params(data__sums=SECTION | section, matrix__tasks=["sums"], pretrain__tasks=[])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data__sudko": {"train": 5}}, "data.sudko: unknown key; did you mean sudoku?"),
        ({"data__x": {"type": "custm"}}, "data.x: type custm: unknown; there is custom"),
        ({"data__x": SECTION | {"trian": 1}}, "data.x.trian: unknown key; did you mean train?"),
        ({"data__x": SECTION | {"train": {"pth": "a"}}}, "data.x.train.p"),
        ({"data__x": SECTION | {"test": 0}}, "data.x.test: expected a source such as"),
        ({"data__x": SECTION | {"prompt": "{answer}?"}}, "data.x: prompt: {answer} would show"),
        ({"data__x": SECTION | {"prompt": "what?"}}, "data.x.prompt: expected at least one column"),
        ({"data__x": SECTION | {"answer_format": []}}, "data.x.answer_format: "),
        ({"data__x": SECTION | {"answer_format": {}}}, "data.x.answer_format: expected one key"),
        ({"data__x": SECTION | {"answer_format": [{}]}}, "data.x.answer_format.0: expected one"),
        ({"data__x": SECTION | {"answer_format": {"zz": 1}}}, "data.x.answer_format.zz: unknown"),
        ({"data__x": SECTION | {"train": {"path": "../r.csv"}}}, "data.x.train.path: ../r.csv: ex"),
        ({"data__x": SECTION | {"test": {"path": "rows.csv"}}}, "data.x.test.path: rows.csv: exp"),
        ({"data__gsm8k__test": {"path": "/x/r.jsonl"}}, "data.gsm8k.test.path: /x/r.jsonl: exp"),
        ({"data__gsm8k__prompt_file": "p.txt"}, "data.gsm8k.prompt_file: p.txt: expected a file"),
        ({"data__sudoku__test_file": "data/x.csv"}, "data.sudoku.test_file: data/x.csv: expected"),
        ({"method__sft__traces": {"path": "t.jsonl"}}, "method.sft.traces.path: t.jsonl: expected"),
        ({"data__x": {"train": 5}}, "sudoku; for a task of your own add type: custom"),
        ({"data__x": SECTION | {"verifier": {"type": "nmber"}}}, "did you mean number?"),
        ({"data__My-task": SECTION}, "data: 'My-task': expected lowercase letters"),
        ({"data__external": SECTION}, "data: 'external': expected lowercase letters"),
        ({"data__x": SECTION, "matrix__tasks": ["y"]}, "matrix.tasks: y: unknown; there is "),
        ({"ablate__task": "y"}, "ablate.task: y: unknown; there is "),
        (
            {"data__x": SECTION | {"instructions": "Add."}, "matrix__tasks": ["x"]},
            "data.x.instructions is not read with model.prompt_style compact",
        ),
        (
            {"data__x": SECTION, "matrix__tasks": ["x"], "matrix__methods": ["sft"]},
            "sft needs reference solutions and x has none",
        ),
    ],
)
def test_a_fault_in_a_task_is_named_by_its_key(here: Path, refusal, changes, said):
    write_params(**changes)
    err = refusal("check")
    assert said in err and ("sudko" not in said or err.count("\n") == 1)


def test_check_names_files_that_are_not_there_and_reads_the_names_of_the_columns(
    project: Path, refusal
):
    begin(project, verifier={"type": "command", "program": ["python", "data/external/s.py"]})
    (project / "data/external/rows.csv").unlink()
    for words in (["check"], ["task", "check", "sums"]):
        err = refusal(*words)
        assert "data.sums.verifier.program.1: data/external/s.py: no such file (D106)" in err
        assert "data.sums.train.path: data/external/rows.csv: no such file" in err
    begin(project, question="frage")
    assert "rows.csv:2: no column frage, which data.sums.question names" in refusal("check")
    begin(project, rows='1+1=,"2,5"\n')
    assert "rows.csv:2: the answer must be one number alone" in refusal("check")


def test_the_first_faulty_rows_are_named_and_the_others_counted(project: Path, capsys, refusal):
    begin(project, rows="".join(f"q{n},{'x' if n % 2 else n}\n" for n in range(10)))
    lines = refusal("prepare").splitlines()
    assert ["rows.csv:3:" in lines[0], "rows.csv:7:" in lines[2]] == [True, True]
    assert lines[3].endswith("and 2 more rows") and len(lines) == 4
    begin(project, validation=6, test=4)
    assert main(["prepare"]) == 2
    said = "data.sums: test 4 and validation 6 cannot be held out of 10 problems"
    assert said in capsys.readouterr().err


def test_a_base_that_scores_0_is_named_before_training():
    from dopsd.pipeline.stages.evaluate_base import base_in_words

    report = {"accuracy": 0.0, "interval": [0.0, 0.088], "n": 40, "split": "validation"}
    score, advice = base_in_words(report, "sums")
    assert score == "base scores 0.0% [0.0, 8.8] on 40 validation problems"
    assert "nothing to learn" in advice and "data.sums.solution" in advice
    assert len(base_in_words(report | {"accuracy": 0.025}, "sums")) == 1


def test_summary_shows_the_links_of_its_own_tasks(project: Path):
    from dopsd.pipeline.results.summary import _links

    begin(project)
    write_json(MLFLOW_PAGES, {"comparison": {"sums": "http://a/1", "sudoku": "http://a/2"}})
    text = _links(load_params(), {"sums"})
    assert "http://a/1" in text and "http://a/2" not in text


def test_a_task_is_a_choice_of_every_command(project: Path, capsys, refusal):
    begin(project)
    assert main(["prepare"]) == 0
    assert (project / "data/sums/prompt.txt").read_text() == "\n"  # DVC warns of an empty file
    assert f"there is {', '.join(sorted(TASKS.names))}, sums" in refusal("train", "--task", "nope")
    row = {"question": "1+1=", "ground_truth": 2, "generation": "<answer>2</answer>"}
    (project / "g.jsonl").write_text(json.dumps(row))
    assert main(["score", "--task", "sums", "--json", "g.jsonl"]) == 0
    assert json.loads(capsys.readouterr().out)["files"][0]["accuracy"] == 1.0
    assert "did you mean sums?" in refusal("score", "--task", "sum", "g.jsonl")
    assert main(["params", "--set", "data.sums.verifier.tolerance=0.5"]) == 0
    assert load_params().data.custom["sums"].verifier.tolerance == 0.5
    assert main(["evaluate_base"]) == 2  # the problems were scored otherwise
    assert "data.sums.verifier or answer_format changed" in capsys.readouterr().err


def test_a_profile_keeps_the_tasks_of_the_file(project: Path):
    begin(project)
    params("llada-8b-gsm8k", "reference", "1x80gb", ["matrix.tasks=[sums]"], Path("params.yaml"))
    settings = load_params()
    assert settings.matrix.tasks == ["sums"] and settings.sampling.gen_length == 256
    assert settings.data.custom["sums"].validation == 2


def test_a_run_of_a_profile_keeps_the_tasks_and_says_how_to_repeat_it(project: Path):
    from dopsd.core.paths import RunKey
    from dopsd.pipeline.results.repeat import nearest_profile, repeat_text, rows
    from dopsd.pipeline.results.run_report import _files
    from dopsd.pipeline.run.request import RunRequest, check

    begin(project)
    (project / "base/sudoku").mkdir(parents=True, exist_ok=True)
    settings = check(RunRequest(task="sums", overrides={"pretrain.tasks": []}), can_retrain=True)
    assert settings.matrix.tasks == ["sums"] and settings.data.custom["sums"].test == 2
    profile, changes = nearest_profile(settings, RunKey("sums", "d_opsd", 0))
    assert profile == "embedded"
    assert ("data.sums", SECTION | {"answer_format": [{"tag": "answer"}]}, "absent") in changes
    shown = {key: value for key, value, _ in rows(changes)}
    assert shown["data.sums.answer_format"] == '[{"tag": "answer"}]' and "data.sums" not in shown
    assert repeat_text([{"boxed": None, "tag": "answer"}]) == shown["data.sums.answer_format"]
    ((key, path, digest),) = _files(settings, "sums")
    assert (key, path) == ("data.sums.train.path", "data/external/rows.csv")
    assert digest == hashlib.sha256(Path(path).read_bytes()).hexdigest()


def test_a_new_task_takes_a_line_for_each_key_and_leaves_the_blank_line_below(project: Path):
    shutil.copy(ROOT / "params.yaml", "params.yaml")
    section = json.dumps(SECTION | {"instructions": "Add the numbers."})
    assert main(["params", "--set", f"data.sums={section}"]) == 0
    text = Path("params.yaml").read_text()
    assert "\n  sums:\n    type: custom\n    train: {path: data/external/rows.csv}\n" in text
    assert "    instructions: Add the numbers.\n\nmodel:\n" in text


def test_each_task_has_the_number_of_the_folder_of_all_until_it_is_removed(project: Path):
    begin(project)
    assert recipes()["tasks"]["sums"] == recipe(ROOT / "dopsd/tasks/custom") > 1
    write_params()
    assert recipes()["tasks"].keys() == {"common", *TASKS.names}


def test_the_flows_offer_the_task_and_its_keys(project: Path):
    begin(project)
    code = (
        "import json; from flows.settings import Task,"
        " overrides_schema; print(json.dumps([str(Task), overrides_schema()]))"
    )
    said = subprocess.check_output([sys.executable, "-c", code], text=True)
    task, schema = json.loads(said.splitlines()[-1])
    assert "'sums'" in task
    validator = Draft202012Validator(schema)
    for value, is_valid in (
        ({"data.sums.verifier.type": "choice"}, True),
        ({"data.sums.test": 5}, True),
        ({"data.sums.test.path": "x.csv"}, True),
        ({"data.sums.nope": 5}, False),
        ({"data.sudoku.train": {"path": "x"}}, False),
    ):
        assert validator.is_valid(value) == is_valid, value


def test_a_good_task_is_ready(project: Path, capsys):
    begin(project)
    assert main(["task", "check", "sums"]) == 0
    out = capsys.readouterr().out
    for line in (
        "<|user|>1+0=<|assistant|>",
        "train: 6 problems",
        "2 test problems: the 95% interval of 0 right is [0, 66]; use more",
        "10 of 10 own answers get full marks",
        "0 of 9 wrong answers get full marks",
        "0 of 10 (0.0%) do not fit in sampling.gen_length 40",
        "sums: the rows, prompts and verifier fit; whether the base can answer: `dopsd prepare",
    ):
        assert line in out
    assert main(["task", "list"]) == 0
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "sums" in line]
    assert row.split() == ["sums", "custom", "data/external/rows.csv", "-", "2", "2", "number"]


def test_check_names_repeated_questions_and_the_scores_of_a_file(project: Path, capsys):
    begin(project, rows="a,1\nb,2\nc,3\n A ,1\nd,4\ne,5\nB,7\nc,3.0\n")
    rows = [(1, "<answer>1.0</answer>", "true"), ("1", 1, "true"), (2.0, "none", "false")]
    lines = [dict(zip(("answer", "generation", "correct"), row, strict=True)) for row in rows]
    (project / "given.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert main(["task", "check", "sums", "--answers", "given.jsonl"]) == 2
    captured = capsys.readouterr()
    places = [f"data/external/rows.csv:{n}" for n in (5, 2)]
    assert f"train {places[0]} has the question of train {places[1]}" in captured.out
    said = "1 of 3 repeated rows have another answer, and only the first row of a question is kept"
    contradiction = "data/external/rows.csv:8: '7', but data/external/rows.csv:3: '2'"
    assert f"  {said}\n  {contradiction}\n" in captured.out
    assert "given.jsonl:2: 0, answer: 'none'; expected full marks" in captured.out
    assert "given.jsonl:3: 0, answer: 'none'" in captured.out
    assert "sums: cannot be trained: 1 answers of given.jsonl" in captured.err


def test_typed_numbers_of_a_file_of_answers_have_a_point(project: Path, capsys):
    begin(project, verifier={"type": "number", "decimal": ","})
    line = '{"answer": 1.125, "generation": "<answer>1,125</answer>", "correct": true}'
    (project / "given.jsonl").write_text(line)
    assert main(["task", "check", "sums", "--answers", "given.jsonl"]) == 0
    assert "given.jsonl:1: 1, answer: '1,125'" in capsys.readouterr().out


def test_whole_answers_with_a_point_are_told_where_they_count_as_texts(project: Path, capsys):
    rows = '[{"question": "a", "answer": 5.0}, {"question": "b", "answer": -1.0},'
    rows += "".join(f'{{"question": "{n}", "answer": {n}.5}},' for n in range(6))
    said = "2 of 8 answers are whole numbers with .0, such as data/external/a.json:1: '5.0'"
    for kind in ("exact", "number"):
        begin(project, train={"path": "data/external/a.json"}, verifier={"type": kind})
        (project / "data/external/a.json").write_text(rows.rstrip(",") + "]")
        assert main(["task", "check", "sums"]) == 0
        assert (said in capsys.readouterr().out) == (kind == "exact")


def test_check_reads_every_row_and_names_columns_that_nobody_reads(project: Path, capsys, refusal):
    begin(project, train={"path": "data/external/a.jsonl"})
    rows = [{"question": f"q{n}", "answer": n, "level": 2, "note": ""} for n in range(6)]
    path = project / "data/external/a.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    assert main(["check"]) == 0
    out = capsys.readouterr().out
    assert out.count("note: data.sums.train: data/external/a.jsonl: not read: level\n") == 1
    rows += [rows[0] | {"answer": "x"}, {"question": "q"}]
    path.write_text("\n".join(map(json.dumps, rows)))
    first, second = refusal("check").splitlines()[:2]
    assert "a.jsonl:7: the answer must be" in first and "a.jsonl:8: no column answer" in second


PATTERN = {"regex": r"x = (\d+)"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"answer_format": [PATTERN, {"tag": "answer"}]}, "do not fit in"),
        ({"answer_format": PATTERN}, "answer_format is a pattern"),
        ({"answer_format": [PATTERN, {"tag": "a"}], "scoring": "strict"}, "is a pattern"),
        ({"answer_format": [{"regex": "a|b"}, {"tag": "a"}]}, "is a pattern"),  # also in <a>
        ({"answer_format": PATTERN, "solution": "text"}, "answer_format is a pattern"),
    ],
)
def test_a_pattern_as_answer_format_does_not_make_a_task_unfit(
    project: Path, capsys, changes, said
):
    begin(project, **changes)
    rows = "".join(f"q{n},{n},so x = {n}\n" for n in range(10))
    (project / "data/external/rows.csv").write_text(f"question,answer,text\n{rows}")
    assert main(["task", "check", "sums"]) == 0
    out = capsys.readouterr().out
    assert said in out and "10 of 10 own answers get full marks" in out
    assert "0 of 9 wrong answers get full marks" in out and "do not show their" not in out


def test_a_program_gets_the_row_of_an_answer_in_a_file(project: Path, capsys):
    (project / "data/external").mkdir()
    (project / "data/external/s.py").write_text(
        "import json, sys\nfor line in sys.stdin:\n    r = json.loads(line)\n    score = float("
        "r['question'] == r['row']['question'] and r['answer'] == r['response'])\n"
        "    print(json.dumps({'id': r['id'], 'score': score}), flush=True)\n"
    )
    program = {"type": "command", "program": ["python", "data/external/s.py"]}
    begin(project, "a,1\nb,2\nc,2\nd,4\ne,5\n", verifier=program | {"columns": ["question"]})
    row = {"answer": "1", "generation": "<answer>1</answer>", "correct": "true"}
    second = {"answer": "2", "generation": "<answer>2</answer>", "correct": "true"}
    for rows, status, said in (
        ([row, second | {"question": " C"}], 0, "given.jsonl:2: 1, answer: '2'"),
        ([row, second], 2, "given.jsonl:2: 2 rows of sums have the answer '2'"),
        ([row | {"question": "b"}], 2, "the question 'b' has the answer '2' in its row, not '1'"),
        ([{"generation": "<answer>5</answer>", "question": "E"}], 0, "given.jsonl:1: 1, answer"),
        ([{"generation": "5"}], 2, "given.jsonl:1: no column answer"),
        ([{"generation": "", "answer": "5"}], 0, "given.jsonl:1: 0, answer: 'none'"),
    ):
        (project / "given.jsonl").write_text("\n".join(map(json.dumps, rows)))
        assert main(["task", "check", "sums", "--answers", "given.jsonl"]) == status
        captured = capsys.readouterr()
        assert said in captured.out + captured.err, captured


def test_two_programs_of_the_same_tests_are_no_wrong_answers_of_each_other(project, capsys):
    if fault := missing_sandbox():
        pytest.skip(f"needs bubblewrap: {fault}")
    verifier = {"type": "python_tests", "tests": "tests"}
    begin(project, verifier=verifier, answer_format={"text": "whole"})
    row = {"tests": "assert x == 0"}
    rows = [row | {"question": f"q{n}", "answer": f"x = {n} - {n}"} for n in range(5)]
    rows += [{"question": "q5", "answer": "x = 5", "tests": "assert x == 5"}]
    (project / "data/external/rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    path = "data.sums.train.path=data/external/rows.jsonl"
    assert main(["params", "--set", path]) == main(["task", "check", "sums"]) == 0
    out = capsys.readouterr().out
    assert "6 of 6 own answers" in out and "0 of 1 wrong answers get full marks" in out


@pytest.mark.parametrize("kind", ["command", "python_tests"])
def test_score_gives_the_verifier_the_row_of_the_question(project: Path, capsys, kind):
    """With an empty row, or without tests, nothing would be right."""
    (project / "data/external").mkdir()
    (project / "data/external/s.py").write_text(
        "import json, sys\nfor line in sys.stdin:\n    r = json.loads(line)\n    print(json.dumps("
        "{'id': r['id'], 'score': float(r['row'].get('key') == r['response'])}), flush=True)\n"
    )
    program = {"program": ["python", "data/external/s.py"], "columns": ["key"]}
    verifier = {"type": kind} | (program if kind == "command" else {"tests": "key"})
    rows = "".join(f"q{n}\t{n}\tassert x == {n}\n" for n in range(6))
    rows = f"question\tanswer\tkey\n{rows}q1\t9\tassert x\n"
    (project / "data/external/rows.csv").write_text(rows)
    if kind == "python_tests" and (fault := missing_sandbox()):
        pytest.skip(f"needs bubblewrap: {fault}")
    section = SECTION | {"verifier": verifier, "prompt": "Say: {question}"}
    write_params(data__sums=section, matrix__tasks=["sums"], pretrain__tasks=[])
    generation = "<answer>assert x == 2</answer>" if kind == "command" else "<answer>x = 2</answer>"
    given = {"question": "q2", "ground_truth": 2, "generation": generation}
    for changes, status, said in (
        ({}, 0, "100.000"),
        ({"question": "Say:  Q2", "ground_truth": None}, 0, "100.000"),
        ({"question": "q3", "ground_truth": "3"}, 0, " 0.000"),
        ({"question": "q7"}, 2, "g.jsonl:1: no rows of sums have the question 'q7'; the verifier"),
        ({"ground_truth": 3}, 2, "the question 'q2' has the answer '2' in its row, not '3'"),
        ({"question": "Q1", "ground_truth": None}, 0, " 0.000"),  # the row that prepare keeps
        ({"question": "q1", "ground_truth": 9}, 2, "has the answer '1' in its row, not '9'"),
    ):
        Path("g.jsonl").write_text(json.dumps(given | changes))
        assert main(["score", "--task", "sums", "g.jsonl"]) == status, capsys.readouterr()
        captured = capsys.readouterr()
        assert said in captured.out + captured.err, captured


@pytest.mark.parametrize(
    ("verifier", "rows", "said"),
    [
        ({"type": "regex", "pattern": r"\d"}, "", "1 of 10 own answers do not get full marks"),
        ({"type": "regex", "pattern": ".*"}, "", "does not tell right from wrong"),
        ({"type": "number"}, f"{'x' * 300},1\n2,2\n3,3\n4,4\n5,5\n", "exceed the model's 256 tok"),
        ({"type": "exact"}, "1,éé1\n2,éé2\n3,éé3\n4,éé4\n5,éé5\n", "characters without a token"),
        (
            {"type": "exact"},
            "".join(f"q{n},{'y' * 50}{n}\n" for n in range(6)),
            "do not fit in sampling.gen_length 40",
        ),
    ],
)
def test_a_task_that_cannot_be_trained_says_why(project: Path, capsys, verifier, rows, said):
    begin(project, rows, verifier=verifier)
    assert main(["task", "check", "sums"]) == 2
    captured = capsys.readouterr()
    assert said in captured.err and "fit;" not in captured.out


def test_prompts_with_special_tokens_or_characters_without_a_token_are_counted(
    project: Path, capsys
):
    rows = "".join(f"<|user|>{n}<|endoftext|>,{n}\n" for n in range(3))
    begin(project, rows=f"{rows}Gr\u00f6\u00dfe 1?,2\n2+2=?,4\n3+3=?,6\n")
    assert main(["task", "check", "sums"]) == 0
    out = capsys.readouterr().out
    said = "3 of 6 rows have the text of a special token, such as data/external/rows.csv:2 (<|us"
    assert said in out
    said = "1 of 6 prompts have characters without a token, such as data/external/rows.csv:5"
    assert f"{said} (\u00df \u00f6)" in out


def test_an_unknown_task_lists_those_of_the_file(project: Path, refusal):
    begin(project)
    assert "task check gsm8k: unknown; there is sums" in refusal("task", "check", "gsm8k")
    assert main(["task", "check"]) == 2


def test_estimates_and_rehearsals_know_sizes_without_published_figures(project: Path):
    from dopsd.pipeline.estimate.command import facts_of
    from dopsd.pipeline.estimate.cost import Facts, problems

    begin(project)
    settings = load_params()
    assert facts_of(settings, "sums") == Facts(attempts=3.0, is_measured=False, test=2, prompt=50)
    raw = small_params(data__sums=SECTION | {"test": {"path": "data/external/rows.csv"}})
    (project / "params.yaml").write_text(yaml.safe_dump(raw))
    assert problems(load_params(), "sums", "test") == 256


def test_rows_that_changed_since_prepare_are_named(project: Path, capsys):
    begin(project)
    assert main(["prepare", "--task", "sums"]) == 0
    rows, prepared = project / "data/external/rows.csv", project / "data/sums/train.jsonl"
    task = load_task("sums", load_params().data.tasks["sums"])
    for change, is_said in (("", False), ("99+1=,100\n", True)):
        rows.write_text(rows.read_text() + change)
        later = prepared.stat().st_mtime + 5
        os.utime(rows, (later, later))
        capsys.readouterr()
        task.load("train")
        said = capsys.readouterr().err
        assert ("warning: data/external/rows.csv changed since `dopsd prepare" in said) is is_said
