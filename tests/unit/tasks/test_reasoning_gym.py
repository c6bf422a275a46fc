"""Tasks of reasoning-gym: the real library makes problems and scores answers, in its processes."""

import json
import re
import runpy
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest
from conftest import ROOT, write_params

from dopsd.config.loading import checked
from dopsd.config.profiles import resolve
from dopsd.core.errors import DopsdError
from dopsd.core.types import Problem
from dopsd.pipeline.task_check.library import note_of
from dopsd.tasks.common.generated import GeneratedTask, GeneratedTaskConfig, Made
from dopsd.tasks.common.sandbox import missing_sandbox
from dopsd.tasks.common.storage import write_splits
from dopsd.tasks.reasoning_gym import server
from dopsd.tasks.reasoning_gym.config import EVALUATED, UNANSWERED, VERSION, ReasoningGymConfig
from dopsd.tasks.reasoning_gym.task import REPEATABLE
from dopsd.tasks.registry import load_task, score_name

gym = pytest.importorskip("reasoning_gym", reason="needs the extra gym")
LIBRARY = Path(gym.__file__).parent
NAMES = sorted(gym.factory.DATASETS)
SLOW = ["knight_swap", "sokoban"]  # to make problems
SMALL = {"train": 6, "validation": 3, "test": 3}


def task(dataset: str, **settings: object) -> GeneratedTask:
    section = {"type": "reasoning_gym", "dataset": dataset, **SMALL, **settings}
    made = load_task("gym_mine", ReasoningGymConfig.model_validate(section))
    assert isinstance(made, GeneratedTask)
    return made


def test_every_split_has_questions_of_its_own_and_the_same_ones_again():
    """In processes of their own, whatever the order of Python's sets."""
    mine = task("word_ladder", config={"min_word_length": 3, "max_word_length": 3})
    splits = mine.build()
    assert {split: len(problems) for split, problems in splits.items()} == SMALL
    questions = [p.prompt for problems in splits.values() for p in problems]
    assert len(questions) == len(set(questions)) == 12
    assert task("word_ladder", config=mine.config.config).build() == splits
    assert task("word_ladder", config=mine.config.config, seed=1).build() != splits
    (problem, *_) = splits["test"]
    assert problem.reference == f"<answer>{problem.answer}</answer>"
    assert mine.fault(problem) is None
    others = [{"threshold": 0.5}, {"graded": True}, {"seed": 1}, {"config": {}}]
    for other in others:  # all that decides scores, or the problems
        changed = task("word_ladder", **{"config": mine.config.config} | other)
        assert "run `dopsd prepare --task gym_mine`" in str(changed.fault(problem))


def test_right_is_a_threshold_and_partial_credit_is_kept():
    sudoku = Problem("p", "", "1 2\n3 4", None, {})
    half = task("mini_sudoku", threshold=0.5)
    scores = {"1 2\n3 4": 1.0, "1 2": 0.5, "9": 0.25}
    for graded, expected in ((False, [1.0, 1.0, 0.0]), (True, [1.0, 0.5, 0.25])):
        mine = GeneratedTask(
            "gym_mine", half.config.model_copy(update={"graded": graded}), half.maker
        )
        mine.score = lambda _, answer: scores.get(answer, 0.0)
        found = [mine.verify(sudoku, f"<answer> {text} </answer>") for text in scores]
        assert [score.score for score in found] == expected
        assert [score.correct for score in found] == [True, True, False]
        assert [score.figures["partial"] for score in found] == [1.0, 0.5, 0.25]
        assert mine.verify(sudoku, "1 2\n3 4").score == 0.0  # without the tag
    assert score_name("gym_mine", "partial").startswith("the mean score of the library")


def test_the_library_scores_in_a_process_that_garbage_does_not_end():
    mine = task("prime_factorization")
    problem, *_ = mine.build()["test"]
    assert mine.verify(problem, f"<answer>{problem.answer}</answer>").correct
    for text in ("qwertz 7", "", "9" * 50_000, "\N{GREEK SMALL LETTER PI} \ud800", "2 x " * 5000):
        assert not mine.verify(problem, f"<answer>{text}</answer>").correct
    assert mine.verify(problem, f"<answer>{problem.answer}</answer>").correct
    assert mine.verify(mine.ask("What is 6?"), "<answer>2 x 3</answer>").score == 0.0
    assert mine.maker.score(problem, "junk") == 0.0  # its scorer raises ValueError


@pytest.mark.full
@pytest.mark.skipif(bool(missing_sandbox()), reason="needs bubblewrap")
def test_an_answer_that_the_library_evaluates_reaches_nothing(tmp_path):
    """`n_queens` evaluates a list, `countdown` an expression."""
    for dataset in ("n_queens", "countdown"):
        mine, mark = task(dataset), tmp_path / dataset
        problem, *_ = mine.build()["test"]
        order = f"__import__('pathlib').Path({str(mark)!r}).write_text('x')"
        assert mine.verify(problem, f"<answer>{problem.answer}</answer>").correct
        assert mine.maker.score(problem, f"[{order}]") < 0.1 > mine.maker.score(problem, order)
        system = "__import__('os')"
        for act in (
            f"{system}.kill({system}.getppid(), 9)",
            f"[{system}.write(n, b'x') for n in range(2, 9)]",
            f"{system}.system('sleep 60 &')",
            f"open('/proc/{{}}/fd/3'.format({system}.getppid()), 'w').write('x')",
        ):
            assert mine.maker.score(problem, act) < 0.1
            assert mine.maker.score(problem, problem.answer) == 1.0
        assert not mark.exists()


def test_scorers_that_evaluate_answers_are_known():
    """All modules of the library that evaluate: these below evaluate what they made themselves."""
    own = {"codeio", "generators_50_99", "generators_00_49", "bitwise_arithmetic"}
    own |= {"basic_arithmetic", "number_sorting"}
    evaluating = re.compile(r"(?<![\w.])(eval|exec)\(|(sympy|sp)\.parse_expr|sympy_parser|sympify")
    found = {p.stem for p in LIBRARY.rglob("*.py") if evaluating.search(p.read_text())}
    assert found - own == EVALUATED


@pytest.mark.full
def test_all_datasets_make_problems_that_their_scorers_take(tmp_path):
    """Twice: the sets of Python, the clock and the global generators change nothing."""
    assert len(NAMES) == 106
    script = f"""
import json, sys
sys.path.insert(0, {str(Path(server.__file__).parent)!r})
import server
rows = {{}}
for name in {[name for name in NAMES if name != "composite"]}:
    rows[name] = [
        server.made(name, "{{}}", 5, 40, index) for index in range(4 if name in {SLOW} else 8)
    ]
    for row in rows[name]:
        request = json.loads(json.dumps(row)) | {{"response": (row["answer"] or "").strip()}}
        row["scores"] = [server.score(request | r) for r in ({{}}, {{"response": ""}})]
open(sys.argv[1], "w").write(json.dumps(rows))
"""
    texts = []
    for path in (tmp_path / "first", tmp_path / "second"):
        words = [*REPEATABLE, sys.executable, "-W", "ignore", "-c", script, str(path)]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        texts.append(path.read_text())
    assert texts[0] == texts[1]
    rows = json.loads(texts[0])
    wrong = {n for n, made in rows.items() if any(row["scores"][0] < 1.0 for row in made)}
    assert wrong == UNANSWERED
    assert [n for n, made in rows.items() if any(row["scores"][1] > 0.05 for row in made)] == []
    assert [n for n, made in rows.items() if len({row["question"] for row in made}) < 4] == []


def test_composites_mix_datasets_and_know_what_a_part_needs():
    parts = [{"name": "chain_sum", "weight": 2.0}, {"name": "lcm", "config": {"max_value": 9}}]
    mixed = task("composite", config={"datasets": parts})
    problems = mixed.build()["train"]
    assert all(mixed.verify(p, f"<answer>{p.answer}</answer>").correct for p in problems)
    assert {"Least Common" in p.prompt for p in problems} == {True, False}
    assert mixed.config.datasets == {"chain_sum", "lcm"} and mixed.config.has_solutions
    assert not task("composite", config={"datasets": [{"name": "boxnet"}]}).config.has_solutions
    timed = task("composite", config={"datasets": [{"name": "time_intervals"}]}).build()["train"]
    assert all("start_time" not in problem.extra["row"]["entry"] for problem in timed)
    dated = {"min_date": date(2000, 1, 1), "max_date": "2001-01-01", "task_types": ["date"]}
    days = task("time_intervals", config=dated | {"max_date_difference_days": 9}).build()
    assert all("1999" not in p.prompt and "2002" not in p.prompt for p in days["train"])


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"dataset": "mini_sudok"}, "dataset: mini_sudok: unknown; there is what `dopsd task list"),
        ({"dataset": "mini_sudok"}, "prints; did you mean mini_sudoku?"),
        (
            {"dataset": "lcm", "config": {"numbers": 3}},
            "'numbers'; config may have min_numbers, max",
        ),
        ({"dataset": "lcm", "config": {"min_numbers": 0}}, "min_numbers"),
        ({"dataset": "composite", "config": {"datasets": 5}}, "expected a list such as"),
        ({"dataset": "coin_flip", "config": {"min_trials": 3, "max_trials": 3}}, "found only"),
        ({"dataset": "lcm", "version": "0.1.0"}, f"reasoning-gym {VERSION} is installed"),
    ],
)
def test_settings_that_make_no_problems_are_one_line(settings, reason):
    raw = resolve("embedded")
    section = {"type": "reasoning_gym", **SMALL, **settings}
    with pytest.raises(DopsdError, match=re.escape(reason)) as error:
        load_task(
            "gym_mine", checked(raw | {"data": {"gym_mine": section}}, "x").data.gym_mine
        ).build()
    assert "data.gym_mine" in str(error.value) and str(error.value).count("\n") == 0


def test_a_task_by_name_needs_no_section_and_types_keep_their_names():
    raw = resolve("embedded")
    named = {"matrix": {"tasks": ["gym_lcm"]}}
    named["evaluate"] = raw["evaluate"] | {"watch": ["gym_word_sorting"]}
    tasks = checked(raw | named, "x").data.tasks
    assert tasks["gym_lcm"].dataset == "lcm" and tasks["gym_word_sorting"].version == VERSION
    for name, section, reason in (
        ("mine", {"type": "reasoning_gym", "dataset": "lcm"}, "begin with gym_"),
        ("gym_lcm", {"type": "reasoning_gym", "dataset": "lcm", "sed": 1}, "did you mean seed?"),
        ("gym_lcm", {"type": "reasoning_gym"}, "data.gym_lcm.dataset: Field required"),
    ):
        with pytest.raises(DopsdError, match=re.escape(reason)):
            checked(raw | {"data": {name: section}}, "x")


def test_check_makes_one_problem(project, refusal):
    section = {"type": "reasoning_gym", "dataset": "lcm", "config": {"numbers": 2}}
    write_params(matrix__tasks=["gym_lcm"], data__gym_lcm=section, pretrain__tasks=[])
    assert "dopsd: data.gym_lcm: lcm: " in refusal("check")


def test_the_page_lists_every_dataset_with_what_to_know_of_it():
    table = (ROOT / "docs/reasoning-gym.md").read_text().partition("<!-- datasets -->")[2]
    rows = [re.split(r" (?<!\\)\| ", line) for line in table.splitlines() if line[:3] == "| `"]
    notes = {cells[0].strip("| `"): cells[-1].strip(" |") for cells in rows}
    assert notes == {name: note_of(name) for name in NAMES}


class Doubling:
    """A library of one's own, as a plug-in may have."""

    identity = "doubling 1"

    def generate(self, seed, count):
        yield from (Made(f"Double {seed + n}.", str(2 * (seed + n))) for n in range(count))

    def score(self, problem, answer):
        return float(answer == problem.answer)


def test_another_library_comes_in_by_the_same_door(here, capsys):
    mine = GeneratedTask("doubling", GeneratedTaskConfig(**SMALL), Doubling())
    problem = mine.build()["train"][0]
    assert mine.verify(problem, f"<answer>{problem.answer}</answer>").correct
    assert mine.verify(problem, "<answer>1</answer>").figures["partial"] == 0.0
    write_splits(mine)
    assert mine.of_generation(problem.prompt, "2") == problem
    with pytest.raises(DopsdError, match="no problem of doubling on disk has the question"):
        mine.of_generation("Double 0.5.", "1")
    mine.maker.generate = lambda seed, count: [Made(f"{seed + n}", "2") for n in range(count)]
    write_splits(mine)
    assert re.findall(r"(\d of 3) test problems have", capsys.readouterr().err) == ["3 of 3"]


def test_the_example_of_a_tiny_llama_has_the_fixed_phrases_as_tokens():
    example = runpy.run_path(str(ROOT / "examples/tiny_llama.py"))
    asked = [f"Spell this word backward: {hex(1000 + n)}\n" for n in range(150)]
    asked += [f"What is {n} + {n + 1}?" for n in range(50)]  # shorter than a phrase
    assert example["phrases"](asked) == ["Spell this word backward: "]
    tokenizer = example["tokenizer_of"](asked)
    ids = tokenizer("Spell this word backward: onyx\n", add_special_tokens=False)["input_ids"]
    assert len(ids) == 1 + len("onyx\n") and tokenizer.decode(ids).endswith("onyx\n")
    answer = "<answer>1 2é</answer>"
    ids = tokenizer(answer, add_special_tokens=False)["input_ids"]
    assert len(ids) == 2 + len("1 2é".encode()) and tokenizer.decode(ids) == answer
