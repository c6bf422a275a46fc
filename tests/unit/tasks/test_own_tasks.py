"""Tasks that params.yaml defines: their rows, splits and problems; and GSM8K under another name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import date
from decimal import Decimal
from pathlib import Path

import pyarrow
import pytest
from hub_server import TOKEN, hub_server
from pyarrow import parquet
from texts import PUBLISHED, golden, needs_golden

from dopsd.core.errors import DopsdError
from dopsd.tasks.common.json_files import Figure
from dopsd.tasks.custom.config import CustomTaskConfig
from dopsd.tasks.custom.task import CustomTask
from dopsd.tasks.gsm8k.config import Gsm8kConfig
from dopsd.tasks.registry import load_task


def task(path: Path, **more: object) -> CustomTask:
    section = {"type": "custom", "train": {"path": str(path)}, "verifier": {"type": "exact"}}
    made = load_task("mine", CustomTaskConfig.model_validate(section | more))
    assert isinstance(made, CustomTask)
    return made


def csv(path: Path, *rows: str, head: str = "question,answer") -> Path:
    path.write_text("\n".join([head, *rows]) + "\n")
    return path


def numbered(count: int) -> list[str]:
    return [f"q{n},a{n}" for n in range(count)]


def test_rows_of_csv_json_and_parquet_give_the_same_problems(tmp_path: Path):
    rows = [{"q": "one?", "n": 1, "note": "x"}, {"q": "two?", "n": 2.5, "note": "y"}]
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbfq,n,note\r\none?,1,x\r\ntwo?,2.5,y\r\n")
    (tmp_path / "a.jsonl").write_text("\r\n".join(map(json.dumps, rows)))
    (tmp_path / "a.json").write_text(json.dumps(rows, indent=1))
    table = pyarrow.Table.from_pylist([row | {"n": str(row["n"])} for row in rows])
    parquet.write_table(table, tmp_path / "a.parquet")
    columns = {"question": "q", "answer": "n", "prompt": "{note}: {question} {{}}"}
    problems = [
        [p for _, p in task(tmp_path / f"a.{suffix}", **columns).read("train")]
        for suffix in ("csv", "jsonl", "json", "parquet")
    ]
    assert problems[0] == problems[1] == problems[2] == problems[3]
    found = [(p.prompt, p.answer) for p in problems[0]]
    assert found == [("x: one? {}", "1"), ("y: two? {}", "2.5")]


NUMBER, AFTER = {"verifier": {"type": "number"}}, {"gold_format": {"after": "####"}}


@pytest.mark.parametrize(
    ("content", "more", "said"),
    [
        ("question,gold\nq,1\n", {}, "a.csv:2: no column answer, which data.mine.answer names"),
        ("question, answer\nq,1\n", {}, "' answer' begins or ends with white space; rename it"),
        ("question,Answer\nq,1\n", {}, "'Answer' has other capital letters; rename it"),
        ("question,answer\nq,\n", {}, "a.csv:2: column answer (data.mine.answer) has no text"),
        ("question,answer\n ,1\n", {}, "a.csv:2: column question (data.mine.question)"),
        ("question,answer\nq,1\n", {"prompt": "{q}"}, "a.csv:2: no column q, which data.mine.prom"),
        ("question,answer\nq,1\n", {"solution": "s"}, "a.csv:2: no column s, which data.mine.sol"),
        ("question;answer\nq;3,5\n", NUMBER, "with the decimal mark '.' as in -1,000.5, for"),
        ("question;answer\nq;3,5\n", NUMBER, "a.csv:2: the answer must be one number alone, "),
        ("question,answer\nq,x\n", AFTER, "a.csv:2: column answer has no answer by data.mine"),
        ("question,answer\n", {}, "data.mine.train.path"),
        ("question,answer\nq,1\n", {"test": 5}, "mine: test 5 and validation 100 cannot be held"),
    ],
)
def test_a_wrong_row_is_named_by_file_and_number(tmp_path: Path, content, more, said):
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(DopsdError) as caught:
        task(tmp_path / "a.csv", **more).build()
    assert said in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "kind"),
    [(Decimal("1.50"), "decimal"), (date(2024, 2, 29), "date"), (b"5", "bytes"), ([b"5"], "list")],
)
def test_a_cell_of_a_type_without_one_text_is_named_by_its_type(tmp_path: Path, value, kind):
    table = pyarrow.table({"question": ["q"], "answer": [value]})
    parquet.write_table(table, tmp_path / "a.parquet")
    said = rf"column answer \(data\.mine\.answer\) is a value of type {kind}, found .* as text"
    with pytest.raises(DopsdError, match=rf"a\.parquet:1: {said}"):
        task(tmp_path / "a.parquet").build()


def test_a_typed_number_has_a_point_whatever_mark_its_texts_have(tmp_path: Path):
    typed = ["1.125", "-0.0", "1.5e-3", "1125", '"1.125"', '"1,125"']
    rows = [f'{{"question": "q{n}", "answer": {text}}}' for n, text in enumerate(typed)]
    (tmp_path / "a.jsonl").write_text("\n".join(rows))
    table = pyarrow.table({"question": ["q0"], "answer": [1.125]})
    parquet.write_table(table, tmp_path / "a.parquet")
    verifier = {"type": "number", "decimal": ","}
    mine, other = (task(tmp_path / f"a.{x}", verifier=verifier) for x in ("jsonl", "parquet"))
    problems = [p for _, p in mine.read("train")] + [p for _, p in other.read("train")]
    problems += [mine.of_generation("q", truth) for truth in (Figure("1.125"), 1.125)]
    right = ["1,125", "0", "0,0015", "1125", "1125", "1,125", "1,125", "1,125", "1,125"]
    answers = [f"<answer>{text}</answer>" for text in right]
    scores = [mine.verify(p, text).score for p, text in zip(problems, answers, strict=True)]
    assert scores == [1.0] * 9


def test_held_out_rows_are_drawn_by_seed_and_no_question_is_in_two_splits(tmp_path: Path, capsys):
    path = csv(tmp_path / "a.csv", *numbered(30), " Q1 ,a1")  # q1 again, in other letters
    first, again, other = (
        task(path, validation=5, test=7, seed=seed).build() for seed in (0, 0, 1)
    )
    assert first == again != other
    sizes = {name: len(problems) for name, problems in first.items()}
    assert sizes == {"train": 18, "validation": 5, "test": 7}
    prompts = [p.prompt for problems in first.values() for p in problems]
    assert sorted(prompts) == sorted(f"q{n}" for n in range(30))
    assert "mine: dropped 1 rows of train" in capsys.readouterr().err


def test_rows_of_test_stay_and_leave_the_other_splits(tmp_path: Path):
    train = csv(tmp_path / "train.csv", *numbered(6))
    v, t = csv(tmp_path / "v.csv", "Q2,a2", "v,a"), csv(tmp_path / "t.csv", "q2,a2", *2 * ["q3,a3"])
    splits = {"validation": {"path": str(v)}, "test": {"path": str(t)}}
    built = task(train, **splits).build()
    assert [p.prompt for p in built["train"]] == ["q0", "q1", "q4", "q5"]
    assert [p.prompt for p in built["validation"]] == ["v"]
    assert [p.prompt for p in built["test"]] == ["q2", "q3", "q3"]
    assert len({p.id for p in built["test"]}) == 3


def test_both_rules_of_scoring_read_the_formats_in_order(tmp_path: Path):
    formats = {"answer_format": [{"tag": "answer"}, {"after": "####"}]}
    path = csv(tmp_path / "a.csv", "q,7")
    for scoring, wanted in (("published", 1.0), ("strict", 0.0)):
        made = task(path, scoring=scoring, **formats)
        score = made.verify(made.of_generation("q", "7"), "so #### 7")
        assert score.score == wanted and score.figures == {"published": 1.0, "strict": 0.0}
    assert made.verify(made.ask("q"), "<answer>7</answer>").score == 0  # no gold answer


def test_problems_on_disk_show_when_their_scoring_changed(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "data/external/s.py"
    script.parent.mkdir(parents=True)
    script.write_text("1")
    program = {"type": "command", "program": ["python", "data/external/s.py"]}
    path = csv(tmp_path / "a.csv", "q,7")
    made = task(path, verifier=program)
    ((_, problem),) = made.read("train")
    assert made.fault(problem) is None
    other = task(path, verifier=program | {"seconds": 3}).fault(problem)
    script.write_text("2")
    for fault in (other, task(path, verifier=program).fault(problem)):
        assert fault is not None and "changed since; run `dopsd prepare --task mine`" in fault


def test_an_instruction_comes_before_the_problem_and_compact_has_none(tmp_path: Path):
    made = task(csv(tmp_path / "a.csv", "q,7"), instructions="Think.")
    ((_, problem),) = made.read("train")
    contents = [
        made.messages(problem, style)[0]["content"] for style in ("compact", "instructions")
    ]
    assert contents == ["q", "Think.\n\nq"]


# the first box with a digit, up to its first brace
BOX = r"\A(?s:.*?)\\boxed\{([^}\n]*\d[^}\n]*)\}"
GSM8K = {
    "type": "custom",
    "train": {"path": str(PUBLISHED / "gsm8k/train.jsonl")},
    "test": {"path": str(PUBLISHED / "gsm8k/test.jsonl")},
    "validation": 256,
    "solution": "answer",
    "gold_format": {"after": "####"},
    "answer_format": [{"regex": BOX}, {"tag": "answer"}],
    "verifier": {"type": "number", "which": "first"},
}


@needs_golden
def test_gsm8k_under_another_name_has_the_published_scores():
    mine = load_task("grade_school", CustomTaskConfig.model_validate(GSM8K))
    scores = [
        mine.verify(mine.of_generation(r["question"], r["ground_truth"]), r["generation"])
        for r in golden("gsm8k")
    ]
    pairs = [(a, row["score"]) for a, row in zip(scores, golden("gsm8k"), strict=True)]
    others = [(a.answer, a.score, published) for a, published in pairs if a.score != published]
    assert len(pairs) == 1130 and others == [("2:00 pm", 0.0, 1.0), (r"\frac{2", 0.0, 1.0)]


@needs_golden
def test_gsm8k_under_another_name_has_its_problems():
    sources = {name: GSM8K[name] for name in ("train", "test")}
    published = load_task("gsm8k", Gsm8kConfig.model_validate(sources)).build()
    mine = load_task("grade_school", CustomTaskConfig.model_validate(GSM8K)).build()
    assert [(p.prompt, float(p.answer.replace(",", "")), p.reference) for p in mine["test"]] == [
        (p.prompt, float(p.answer), p.reference) for p in published["test"]
    ]
    assert len(mine["validation"]) == 256


PREPARE = """
import json
from dopsd.tasks.custom.config import CustomTaskConfig
from dopsd.tasks.registry import load_task
source = {"path": "me/rows", "split": "train", "revision": REVISION}
section = {"type": "custom", "train": source, "test": source | {"split": "test"}, "validation": 1}
config = CustomTaskConfig.model_validate(section | {"verifier": {"type": "number"}})
splits = load_task("mine", config).build()
print(json.dumps({name: [[p.prompt, p.answer] for p in rows] for name, rows in splits.items()}))
"""


@pytest.mark.full
def test_rows_come_from_a_hub_by_name_split_and_revision(tmp_path: Path):
    train, test = b"question,answer\n1+1?,2\n1+2?,3\n", b"question,answer\n2+2?,4\n"
    files = {"train.csv": train, "test.csv": test}
    with hub_server() as hub:
        hub.add("me/rows", files)
        env = os.environ | {"HF_ENDPOINT": hub.address, "HF_TOKEN": TOKEN}
        env |= {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"}
        code = PREPARE.replace("REVISION", '"main"')
        ran = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    splits = json.loads(ran.stdout.splitlines()[-1])
    assert splits["test"] == [["2+2?", "4"]]
    assert sorted(splits["train"] + splits["validation"]) == [["1+1?", "2"], ["1+2?", "3"]]


def test_a_generation_has_the_row_of_its_question_or_of_its_answer(tmp_path):
    rows = [("1+1?", "2"), ("0+2?", "2"), ("1+2?", "3")]
    lines = [json.dumps({"question": q, "answer": a}) + "\n" for q, a in rows]
    (tmp_path / "train.jsonl").write_text("".join(lines))
    mine = task(tmp_path / "train.jsonl")
    assert mine.of_row("0+2?", "2").prompt == mine.of_row("0+2?", None).prompt == "0+2?"
    assert mine.of_row(None, "3").prompt == "1+2?"
    with pytest.raises(DopsdError, match="2 rows of mine have the answer '2'"):
        mine.of_row(None, "2")


def test_a_question_of_two_splits_has_the_row_of_the_first(tmp_path):
    for number, split in enumerate(("test", "validation", "train")):
        rows = [{"question": "1+1?", "answer": f"{number}"}, {"question": split, "answer": "x"}]
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    others = {name: {"path": str(tmp_path / f"{name}.jsonl")} for name in ("validation", "test")}
    known = task(tmp_path / "train.jsonl", **others).known
    answers = {words: [p.answer for _, p in rows] for words, rows in known.items()}
    assert answers == {"1+1?": ["0"], "test": ["x"], "validation": ["x"], "train": ["x"]}
