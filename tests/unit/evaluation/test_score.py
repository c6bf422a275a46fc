"""dopsd score: generations on file to a table, JSON and verdicts, without a params.yaml."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from unittest.mock import Mock

import pytest

from dopsd.cli.main import main
from dopsd.core.statistics import wilson
from dopsd.core.types import Score
from dopsd.evaluation.score_files import summarise

RIGHT = r"<answer>\boxed{4}</answer>"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(name: str, *generations: str) -> str:
    """Rows that ask for 2 + 2."""
    asked = {"question": "2 + 2?", "ground_truth": 4.0}
    text = "".join(json.dumps(asked | {"generation": text}) + "\n" for text in generations)
    if name.endswith(".json"):
        rows = [asked | {"generations": [text]} for text in generations]
        text = json.dumps({"generations": rows, "n": 1})
    Path(name).write_text(text)
    return name


def test_two_files_give_a_line_each_and_one_for_all(capsys: pytest.CaptureFixture):
    files = [write("a.jsonl", RIGHT, r"\boxed{4}", "5"), write("b.json", RIGHT)]
    assert main(["score", "--task", "gsm8k", "--json", *files]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["packages"] == {"dopsd": version("dopsd")}
    a, b, both = document["files"]
    assert (a["file"], a["n"], a["accuracy"]) == ("a.jsonl", 3, pytest.approx(2 / 3))
    assert a["interval"] == pytest.approx(wilson(2, 3))
    assert a["figures"] == {"published": pytest.approx(2 / 3), "strict": pytest.approx(1 / 3)}
    assert (b["accuracy"], both["file"], both["n"], both["accuracy"]) == (1.0, "all", 4, 0.75)


def test_the_strict_rule_can_be_asked_for(capsys: pytest.CaptureFixture):
    file = write("a.jsonl", RIGHT, r"\boxed{4}")
    assert main(["score", "--task", "gsm8k", "--scoring", "strict", file]) == 0
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("strict rule", "50.000", "published %", "100.0"))


def test_graded_scores_show_partial_ones_and_valid_grids(capsys: pytest.CaptureFixture):
    question = "Solve the following Sudoku puzzle: 0234341221434320\n"
    row = {"question": question, "ground_truth": "1234341221434321"}
    texts = ["<answer>1234341221434321</answer>", "<answer>1234341221434324</answer>"]
    lines = [json.dumps(row | {"generation": text}) + "\n" for text in texts]
    Path("s.jsonl").write_text("".join(lines))
    assert main(["score", "--task", "sudoku", "--json", "s.jsonl"]) == 0
    (line,) = json.loads(capsys.readouterr().out)["files"]
    assert (line["accuracy"], line["interval"]) == (0.75, [0.5, 1.0])
    assert line["figures"] == {"published": 0.75, "strict": 0.75, "valid_grid": 0.5}


def test_the_interval_of_partial_scores_holds_their_mean_in_an_ungraded_task_too():
    line = summarise("a.jsonl", [Score("x", 0.5, correct=False)] * 10, Mock(graded=False))
    assert line.accuracy == 0.5 and line.interval == wilson(5, 10)


def test_verdicts_are_a_line_a_generation_and_leave_no_half_file():
    file = write("a.jsonl", "\n", r"\boxed{4}")
    assert main(["score", "--task", "gsm8k", "--verdicts", "out/v.jsonl", file]) == 0
    lines = [json.loads(line) for line in Path("out/v.jsonl").read_text().splitlines()]
    assert lines[0]["answer"] is None
    scores = {"score": 1.0, "published": 1.0, "strict": 0.0}
    assert lines[1] == {"file": "a.jsonl", "row": 2, "question": "2 + 2?", "answer": "4"} | scores
    assert [path.name for path in Path("out").iterdir()] == ["v.jsonl"]


def test_verdicts_go_to_a_pipe_through_a_link_and_leave_nothing_on_a_full_disk(capsys):
    words = ["score", "--task", "gsm8k", write("a.jsonl", RIGHT), "--verdicts"]
    os.mkfifo("pipe")
    reader = os.open("pipe", os.O_RDWR | os.O_NONBLOCK)
    assert main([*words, "pipe"]) == 0 and Path("pipe").is_fifo()
    assert json.loads(os.read(reader, 1000))["row"] == 1
    os.close(reader)
    Path("link").symlink_to("target")
    assert main([*words, "link"]) == 0
    assert Path("link").is_symlink() and json.loads(Path("target").read_text())["row"] == 1
    assert main([*words, "/dev/full"]) == 75 and "D705" in capsys.readouterr().err
    code = "import resource, sys; from dopsd.cli.main import main; resource.setrlimit(resource."
    code += "RLIMIT_FSIZE, (20, 20)); sys.exit(main(sys.argv[1:]))"
    ran = subprocess.run([sys.executable, "-c", code, *words, "v"], check=False, stderr=-1)
    assert ran.returncode == 75 and b"D705" in ran.stderr and not [*Path.cwd().glob("*v*")]


@pytest.mark.parametrize(
    ("words", "output", "status"),
    [
        ("score --task gsm8k --json a.jsonl", "/dev/full", 75),
        ("score --task gsm8k a.jsonl", "/dev/full", 75),
        ("init p", "/dev/full", 0),  # its result is a folder
        ("", "/dev/full", 75),
        ("score --help", "/dev/full", 75),
        ("--version", "/dev/full", 75),
        ("score --task gsm8k --json a.jsonl", "&-", 0),
        ("score --task gsm8k --verdicts /dev/stdout a.jsonl", "out", 2),  # both would write it
    ],
)
def test_an_output_that_is_cut_is_no_success(words: str, output: str, status: int):
    write("a.jsonl", RIGHT)
    command = f"{sys.executable} -m dopsd {words} >{output}"
    ran = subprocess.run(command, shell=True, check=False, capture_output=True, text=True)
    assert ran.returncode == status, ran.stderr
    assert ("D705" in ran.stderr) == (status == 75) and "Traceback" not in ran.stderr


def test_two_processes_write_verdicts_to_one_file(monkeypatch: pytest.MonkeyPatch):
    words = ["score", "--task", "gsm8k", "--verdicts", "v.jsonl"]
    second = [sys.executable, "-m", "dopsd", *words, write("b.jsonl", "5", "6")]
    rename = Path.rename

    def rename_last(path: Path, target: Path) -> Path:
        """The second process writes and ends between the first one's writing and renaming."""
        subprocess.run(second, check=True, capture_output=True)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", rename_last)
    assert main([*words, write("a.jsonl", RIGHT)]) == 0
    assert Path("v.jsonl").read_text().count("a.jsonl") == 1
    assert sorted(path.name for path in Path.cwd().iterdir()) == ["a.jsonl", "b.jsonl", "v.jsonl"]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.jsonl", "", "a.jsonl: no generations"),
        (
            "a.jsonl",
            '{Q, "ground_truth": 1, "generation": "x", "generation": "y"}',
            "a.jsonl:1: expected one JSON object on each line: key 'generation' occurs twice",
        ),
        ("a.jsonl", '{Q, "ground_truth": 1, "generation": "x"}\n{', "a.jsonl:2: expected one JSON"),
        ("a.jsonl", '{Q, "generation": "x"}', "a.jsonl:1: no key ground_truth; expected"),
        (
            "a.jsonl",
            '{Q, "ground_truth": 1, "text": "x"}',
            "a.jsonl:1: no key generation; expected",
        ),
        ("a.jsonl", '{Q, "ground_truth": 1, "generation": 3}', "a.jsonl:1: expected question and"),
        ("a.jsonl", '{Q, "ground_truth": "x", "generation": ""}', "a.jsonl:1: expected a number"),
        ("a.json", "[]", 'a.json: expected a JSON object with a list "generations"'),
        (
            "a.json",
            '{"generations": [{Q, "ground_truth": 1, "generations": ["x", "y"]}]}',
            "a.json:1: expected question and generation as strings, one generation in each row",
        ),
    ],
)
def test_a_malformed_file_is_one_line_and_nothing_is_written(name, content, expected, capsys):
    Path(name).write_text(content.replace("Q", '"question": "q"'))
    words = ["score", "--task", "gsm8k", "--verdicts", "v.jsonl"]
    assert main([*words, write("good.jsonl", RIGHT), name]) == 2
    streams = capsys.readouterr()
    assert streams.err.startswith(f"dopsd: {expected}") and not streams.out
    assert streams.err.count("\n") == 1
    assert not Path("v.jsonl").exists()


@pytest.mark.parametrize("task", ["sudoku", "countdown", "math500"])
def test_a_file_of_another_task_is_recognised(task: str, capsys: pytest.CaptureFixture):
    assert main(["score", "--task", task, write("a.jsonl", RIGHT)]) == 2
    assert f"is this a file of {task}?" in capsys.readouterr().err


def test_a_missing_file_and_an_unknown_task_are_reported(capsys: pytest.CaptureFixture):
    assert main(["score", "--task", "gsm8k", "none.jsonl"]) == 2
    assert main(["score", "--task", "chess", "none.jsonl"]) == 2
    missing, unknown = capsys.readouterr().err.splitlines()
    assert "none.jsonl: No such file" in missing
    assert "--task chess: unknown; there is chains, countdown" in unknown
