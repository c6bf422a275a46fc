"""Some garbage to every parser (`make garbage`: ten thousand), and what was found so."""

import json
from pathlib import Path

import garbage
import pytest
from examples import GRID, ROWS, SETTINGS
from garbage import Found, fed, refused, workspace
from parsers import PARSERS

from dopsd.cli.main import main
from dopsd.config.loading import load_params
from dopsd.config.params_file import params
from dopsd.core.errors import WIDEST
from dopsd.core.files import append_lines, read_json, read_lines
from dopsd.core.tables import read_log, read_table
from dopsd.tasks.common.config import Source
from dopsd.tasks.common.sources import read_rows, text_of
from dopsd.tasks.common.storage import read_problems

INPUTS = 50
HUGE = "9" * 5000
LONG = "data/external/" + "x" * 5000


@pytest.mark.parametrize("parser", PARSERS)
def test_garbage_is_taken_or_refused_with_a_line_and_nothing_is_written_elsewhere(
    parser: str, monkeypatch: pytest.MonkeyPatch
):
    # `make garbage` holds one second; coverage and other work cost more here
    monkeypatch.setattr(garbage, "SECONDS", 20.0)
    found = Found(parser)
    with workspace() as root:
        for number in range(10):
            fed(parser, f"warm.{number}", root, Found(parser))
        for number in range(INPUTS):
            fed(parser, f"1.{number}", root, found)
    assert found.misses == [] and found.inputs == INPUTS


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- " * 5000, "too deep"),
        ("train: {updates: " + HUGE + "}", "not valid YAML"),
        ("train: 2001-99-99", "not valid YAML"),
        ("train: {lora: {alpha: " + "9" * 400 + "}}", "train.lora.alpha: Input should be less"),
        ("matrix: {seeds: [100000000000000000000]}", "matrix.seeds.0: Input should be less than"),
        ("evaluate: {protocols: {../../x: {}}}", "protocols.../../x.[key]: expected a name of"),
        ("evaluate: {protocols: {'a/b': {}}}", "evaluate.protocols.a/b.[key]: expected a name of"),
        ("ablate: {tables: {../x: []}}", "ablate.tables.../x.[key]: expected a name of"),
        ('model: {path: "\\ud800"}', "unpaired surrogate"),
        ("tracking: {registered_model: ../x}", "tracking.registered_model: expected a name of"),
        ('data: {sudoku: {test_file: "a\\0b.csv"}}', "data.sudoku.test_file: a text must not"),
        ("\n".join(f"k{n}: 1" for n in range(500)), "and 481 more errors"),
        ("train: " + "x" * 50_000, "train: Input should be a valid dictionary"),
    ],
)
def test_settings_without_a_bound_are_refused(here: Path, text: str, said: str):
    Path("params.yaml").write_text(text)
    refused(lambda: load_params(Path("params.yaml")), said)


def test_a_name_that_no_disk_takes_is_a_mistake_and_not_temporary(here: Path, refusal):
    Path("params.yaml").write_text(SETTINGS.replace("test_file: null", f"test_file: {LONG}"))
    for words, said in (
        (["check"], "data.sudoku.test_file: data/external/xxx"),
        (["score", "--task=gsm8k", LONG], "dopsd: "),
        (["check", f"--params={LONG}"], "dopsd: "),
    ):
        line, *others = refusal(*words).splitlines()
        assert said in line and all("model.path" in other for other in others)


def test_broken_settings_can_be_replaced_and_a_folder_cannot(here: Path):
    for text in ("evaluate: 5", "evaluate: {protocols: [1]}", "train: 2001-01-01"):
        Path("params.yaml").write_text(text)
        assert params("embedded", "reference", "1x80gb", [], Path("params.yaml"))
        load_params(Path("params.yaml"))
    Path("folder").mkdir()
    written = lambda: params("embedded", "reference", "1x80gb", [], Path("folder"))  # noqa: E731
    refused(written, "--params folder: is a folder")
    assert {path.name for path in here.iterdir()} == {"params.yaml", "folder", "work"}


@pytest.mark.parametrize("value", [HUGE, "2001-99-99", "[" * 500, "!!int x"])
def test_a_change_that_no_yaml_reader_takes_is_one_line(here: Path, value: str):
    Path("params.yaml").write_text(SETTINGS)
    asked = (None, "reference", "1x80gb", [f"train.updates={value}"], Path("params.yaml"))
    refused(lambda: params(*asked), "--set train.updates", "is not a YAML value")
    assert Path("params.yaml").read_text() == SETTINGS


def test_a_solution_written_as_a_number_is_scored(here: Path, capsys: pytest.CaptureFixture):
    Path("s.jsonl").write_text(json.dumps(ROWS["sudoku"] | {"ground_truth": int(GRID)}))
    assert main(["score", "--task", "sudoku", "--json", "s.jsonl"]) == 0
    assert json.loads(capsys.readouterr().out)["files"][0]["accuracy"] == 1.0


def test_verdicts_never_replace_a_folder_or_what_is_scored(here: Path, refusal):
    Path("g.jsonl").write_text(json.dumps(ROWS["gsm8k"]))
    Path("folder").mkdir()
    for out in ("g.jsonl", "./g.jsonl", "folder", ".", "/"):
        words = ["score", "--task", "gsm8k", "--verdicts", out, "g.jsonl"]
        assert f"--verdicts {Path(out)}: " in refusal(*words)
    assert Path("g.jsonl").read_text() == json.dumps(ROWS["gsm8k"])
    assert len(list(here.iterdir())) == 2


@pytest.mark.parametrize("name", ["a[/b].jsonl", "a\udcff.jsonl"])
def test_a_file_of_any_name_is_scored(here: Path, capsys: pytest.CaptureFixture, name: str):
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text(json.dumps(ROWS["gsm8k"]))
    assert main(["score", "--task", "gsm8k", name]) == 0
    assert name.replace("\udcff", "?") in capsys.readouterr().out


def test_a_comparison_never_removes_a_folder_with_anything_else_in_it(here: Path, refusal):
    Path("params.yaml").write_text(SETTINGS)
    Path("kept").mkdir()
    (Path("kept") / "thesis.tex").write_text("years")
    for out in ("kept", ".", "kept/..", "/", "kept/thesis.tex"):
        assert "already exists and is not an earlier comparison" in refusal("compare", "--out", out)
    for name in ("sudoku/d_opsd/\u00b2", f"sudoku/d_opsd/{HUGE}"):
        assert "expected task/method/seed" in refusal("compare", name)


def test_results_that_are_no_results_are_named_by_file_and_row(here: Path):
    for number, line in enumerate((b'{"update": 1', b"\xff", b"[1]", b"[" * 5000), 1):
        Path("log.jsonl").write_bytes(b'{"update": 1}\n' * number + line + b"\n")
        refused(lambda row=number + 1: read_log(Path("log.jsonl")), f"log.jsonl:{number + 1}: ")
        Path("lines.jsonl").unlink(missing_ok=True)
        append_lines(Path("lines.jsonl"), [{"update": 1}] * number)
        with Path("lines.jsonl").open("ab") as lines:
            lines.write(line + b"\n")
        assert read_lines(Path("lines.jsonl")) == [{"update": 1}] * number
    for cells in (b"1", b"1,2,3", b"\xff,1", b"1," + b"x" * 200_000):
        Path("curve.csv").write_bytes(b"update,accuracy\n" + cells + b"\n")
        refused(lambda: read_table(Path("curve.csv")), "curve.csv:")
    for text in ("{", "[]", "[" * 5000):
        Path("select.json").write_text(text)
        refused(lambda: read_json(Path("select.json"), "dopsd select"), "select.json: ")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"reference": 5}, "reference must be a text or null"),
        ({"prompt": "half \ud800"}, "unpaired surrogate"),
        ({"reference": "half \ud800"}, "unpaired surrogate"),
    ],
)
def test_a_problem_that_no_tokenizer_takes_is_named_by_row(here: Path, change: dict, said: str):
    Path("data.jsonl").write_text(json.dumps({"id": "a", "prompt": "b", "answer": "c"} | change))
    refused(lambda: read_problems(Path("data.jsonl"), lambda problem: None), "data.jsonl:1: ", said)
    Path("rows.jsonl").write_text('{"question": "half \\ud800"}')
    (row,) = read_rows(Source(path="rows.jsonl"), "key")
    refused(lambda: text_of(row, "question"), "rows.jsonl:1: ", "unpaired surrogate")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        *(
            (["test", f"--seed={seed}"], "argument --seed: expected a whole number from 0 to")
            for seed in ("-1", "\u0663", "99999999999999999999", HUGE)
        ),
        (["evaluate", "--attempts", HUGE], "--attempts"),
        (["evaluate", "--temperature", HUGE + "x"], "--temperature"),
        (["evaluate", "--split", HUGE], "--split"),
        (["evaluate", "--update", "0"], "--update"),
        (["train", "--task=--"], "expected a value"),  # of which argparse makes a list
        (["evaluate", "--adapter=--"], "expected a value"),
    ],
)
def test_a_wrong_argument_is_a_readable_line(here: Path, capsys, words: list[str], said: str):
    with pytest.raises(SystemExit, match="2"):
        main(words)
    line = capsys.readouterr().err.splitlines()[-1]
    assert said in line and "_" not in line and len(line) < WIDEST + 100
