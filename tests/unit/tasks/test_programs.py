"""Verifier `command`: whatever a program does ends as a score or one line."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from waiting import until

from dopsd.core.errors import DopsdError
from dopsd.core.types import Problem
from dopsd.tasks.common.program import CommandVerifier, Limits
from dopsd.tasks.custom.verifiers import math_server
from dopsd.tasks.custom.verifiers.command import mathematics, verifier_command
from dopsd.tasks.custom.verifiers.config import CommandConfig, MathConfig

LOOP = """
import json, os, sys, time
for line in sys.stdin:
    request = json.loads(line)
    number, answer = request["id"], request["response"]
    {}
"""
EQUAL = 'float(answer == request["answer"])'
ANSWER = f'print(json.dumps({{"id": number, "score": {EQUAL}}}), flush=True)'
Make = Callable[..., CommandVerifier]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Make the verifier of a program whose loop has these statements."""
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "data/external/score.py"
    script.parent.mkdir(parents=True)

    def maker(body: str, *words: str, seconds: int = 100, memory_mb: int = 400) -> CommandVerifier:
        script.write_text(LOOP.format(body))
        program = ["python", "data/external/score.py", *words]
        config = CommandConfig(program=program, seconds=seconds, memory_mb=memory_mb)
        return verifier_command("data.x.verifier", config)

    return maker


def problem(answer: str = "4") -> Problem:
    return Problem("x-17", "2 + 2?", answer, extra={"row": {"tests": "t"}})


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_program_scores_answers_one_after_the_other_in_one_process(make: Make):
    verifier = make('Path = "pids"; open(Path, "a").write(f"{os.getpid()}\\n"); ' + ANSWER)
    scores = [verifier.score(problem(), answer) for answer in ("4", "5", "x" * 200_000, "4")]
    assert scores == [1.0, 0.0, 0.0, 1.0]
    assert len(set(Path("pids").read_text().split())) == 1


def test_a_program_gets_question_answer_response_and_columns_and_no_shell(make: Make):
    body = 'open("seen", "w").write(json.dumps([sys.argv[1:], request])); ' + ANSWER
    make(body, "$HOME", "*", "; touch shell").score(problem(), "4")
    seen = Path("seen").read_text()
    request = {"id": 1, "question": "2 + 2?", "answer": "4", "response": "4", "row": {"tests": "t"}}
    assert json.loads(seen) == [["$HOME", "*", "; touch shell"], request]
    assert not Path("shell").exists()


def test_a_hanging_program_scores_0_and_is_killed_with_its_children(make: Make, capsys):
    body = 'answer == "5" and time.sleep(600); child = os.fork() or time.sleep(600); '
    verifier = make(body + 'open("child", "w").write(str(child)); ' + ANSWER)
    assert verifier.score(problem(), "4") == 1.0
    verifier.program.limits = Limits(1, 400)
    assert verifier.score(problem(), "5") == 0.0
    assert "data.x.verifier.program: x-17: no answer in 1 s" in capsys.readouterr().err
    until(lambda: not is_alive(int(Path("child").read_text())))


def test_a_program_that_also_fails_on_the_rows_own_answer_is_at_fault(make: Make, capsys):
    verifier = make("hog = bytearray(800 * 2**20); " + ANSWER)
    assert [verifier.score(problem(), "4") for _ in range(2)] == [0.0, 0.0]
    assert "(MemoryError)" in capsys.readouterr().err
    with pytest.raises(DopsdError, match=r"x-17: the program ended .* right answer '4'") as caught:
        verifier.score(problem(), "4")
    assert "\n" not in str(caught.value)


def test_a_program_without_answers_is_told_to_flush_them(make: Make):
    verifier = make("pass")
    verifier.program.limits = Limits(0.1, 400, 0.2)
    assert [verifier.score(problem(), "4") for _ in range(2)] == [0.0, 0.0]
    with pytest.raises(DopsdError, match=r"no answer in 0\.1 s.*it must flush.*jq --unbuffered"):
        verifier.score(problem(), "4")


def test_one_bad_answer_does_not_end_a_program_that_scores_the_others(make: Make):
    verifier = make('answer == "bad" and os.abort(); ' + ANSWER)
    answers = ["4", "bad", "4", "bad", "4", "bad", "4"]
    assert [verifier.score(problem(), a) for a in answers] == [1, 0, 1, 0, 1, 0, 1]


def test_hard_answers_in_a_row_score_0_where_the_rows_own_answer_is_scored(make: Make):
    verifier = make('answer == "bad" and os.abort(); ' + ANSWER)
    assert [verifier.score(problem(), answer) for answer in [*7 * ["bad"], "4"]] == [*7 * [0], 1]


def test_hard_expressions_score_0_even_where_the_rows_own_is_hard(make: Make, monkeypatch):
    """A process that dies of some expressions stands for the library's."""
    pytest.importorskip("math_verify")
    make('"bad" in (answer, request["answer"]) and os.abort(); ' + ANSWER)
    monkeypatch.setattr(math_server, "__file__", "data/external/score.py")
    verifier = mathematics("data.x.verifier", MathConfig())
    rows = [("4", "bad"), ("4", "bad"), *4 * [("bad", "4")], ("4", "4")]
    assert [verifier.score(problem(gold), answer) for gold, answer in rows] == [*6 * [0], 1]


def test_a_library_that_cannot_start_is_at_fault_at_the_third_answer(make: Make):
    pytest.importorskip("math_verify")
    verifier = mathematics("data.x.verifier", MathConfig(memory_mb=16))
    assert [verifier.score(problem(), "4") for _ in range(2)] == [0, 0]
    with pytest.raises(DopsdError, match=r"x-17: the program ended .* right answer '1'"):
        verifier.score(problem(), "4")


def test_an_answer_has_the_same_score_whatever_came_before_it(make: Make):
    """A program that swells, and one that is slow: neither is a matter of the answers before."""
    verifier = make('seen = globals().get("seen", 0) + 1; seen > 3 and os.abort(); ' + ANSWER)
    assert [verifier.score(problem(), "4") for _ in range(8)] == [1] * 8
    verifier = make('answer == "slow" and time.sleep(2); ' + ANSWER, seconds=1)
    verifier.program.limits = Limits(1, 400, 30.0)
    assert verifier.score(problem("slow"), "slow") == 0  # in the time that only a start may take


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('print("garbage", flush=True)', "expected one JSON object in one line with id 1"),
        ("print(json.dumps({'score': 1}), flush=True)", "expected one JSON object"),
        ("print('[' * 100000, flush=True)", "expected one JSON object"),
        ("print(json.dumps({'id': 1, 'score': float('nan')}), flush=True)", "found 'nan'"),
        ("print(json.dumps({'id': 1, 'score': 1.5}), flush=True)", "from 0 to 1, found '1.5'"),
        ("print(json.dumps({'id': 1, 'score': True}), flush=True)", "found 'True'"),
        ("print(json.dumps({'id': 1}), flush=True)", "found 'None'"),
    ],
)
def test_wrong_output_is_one_line_with_the_row(make: Make, body: str, said: str):
    with pytest.raises(DopsdError, match=r"data\.x\.verifier\.program: x-17: ") as caught:
        make(body).score(problem(), "4")
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_more_lines_than_requests_are_noticed(make: Make):
    verifier = make(f"{ANSWER}; {ANSWER}")
    assert verifier.score(problem(), "4") == 1.0
    with pytest.raises(DopsdError, match="with id 2"):
        verifier.score(problem(), "5")


def test_a_program_ends_with_its_user(make: Make):
    verifier = make(ANSWER)
    verifier.score(problem(), "4")
    process = verifier.program.process
    assert process is not None and is_alive(process.pid)
    del verifier
    assert process.pid != os.getpid()
    until(lambda: not is_alive(process.pid))
