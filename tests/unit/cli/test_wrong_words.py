"""Words of the command line: what is refused in one line before any work, and what a run asks."""

import re
from pathlib import Path

import pytest
from conftest import write_params
from ports import free_port

from dopsd.cli.main import build_parser, main
from dopsd.cli.runs import _request
from dopsd.config.profiles import AS_IT_STANDS


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("sumary", "sumary: unknown command; did you mean summary?"),
        ("xyz", "xyz: unknown command;"),
        ("--verson", "--verson: unknown option; did you mean --version?"),
        # before the option that is missing because of it
        ("score --tsk gsm8k a.jsonl", "--tsk: unknown option; did you mean --task?"),
        ("evaluate --protcol=published", "--protcol: unknown option; did you mean --protocol?"),
        (
            "score --task gsm8k --scoring strct a.jsonl",
            "--scoring strct: unknown; there is published, strict; did you mean strict?",
        ),
        ("summary now", "now: too many arguments;"),
        ("train --seed x", f"--seed: expected a whole number from 0 to {2**63 - 1}, found 'x';"),
    ],
)
def test_a_mistyped_word_is_one_line_that_suggests_the_right_one(words: str, line: str, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == 2
    prog = " ".join(["dopsd", *re.findall(r"^\w+(?= )", words)])
    said = capsys.readouterr().err.replace("argument ", "")
    assert said == f"{prog}: {line} see `{prog} --help` (D201)\n"


def test_values_that_look_like_options_are_values(refusal):
    assert "none.yaml: no such file" in refusal("params", "--params", "none.yaml", "--set=--x")


def test_words_for_dvc_are_left_to_dvc(here, refusal):
    assert "dvc.yaml: no such file" in refusal("repro", "--no-such-option", "--help")


def test_options_become_a_request():
    words = "run --seeds 0,1 --methods d_opsd,rft --tasks sudoku --updates 5 --set train.lora.r=4"
    words += " --set train.updates=9 --set tracking.uri=null"  # what is named goes first
    request = _request(build_parser().parse_args(words.split()))
    assert request.profile == AS_IT_STANDS and request.seeds == [0, 1]
    own = ["train.lora.r=4", "train.updates=5", "tracking.uri=null"]
    tasks, methods = 'matrix.tasks=["sudoku"]', 'matrix.methods=["d_opsd", "rft"]'
    assert request.changes == [*own, tasks, methods, "matrix.seeds=[0, 1]"]
    profiled = build_parser().parse_args(["run", "--profile", "embedded"])
    assert _request(profiled).profile == "embedded"


@pytest.mark.parametrize(
    "words", ["--seeds 0,b", "--seeds 0,", "--tasks a/b", "--updates 0", "--detach --local"]
)
def test_a_wrong_option_is_refused_with_exit_code_2(words, capsys):
    with pytest.raises(SystemExit) as end:
        main(["run", *words.split()])
    assert end.value.code == 2 and "argument --" in capsys.readouterr().err


@pytest.fixture
def without_server(project, monkeypatch) -> Path:
    monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{free_port()}/api")
    return project


def test_a_wrong_setting_is_refused_before_any_server_is_asked(without_server, capsys):
    write_params()
    before = Path("params.yaml").read_bytes()
    for where in ([], ["--local"]):
        assert main(["run", "--set", "train.updats=5", *where]) == 2
        line = "dopsd: --set: train.updats: unknown key; did you mean updates?"
        assert line in capsys.readouterr().err
    assert Path("params.yaml").read_bytes() == before


@pytest.mark.parametrize("command", ["run", "attach", "cancel"])
def test_a_folder_without_the_flows_is_named(without_server, command, refusal):
    write_params()
    assert "flows/runs.py: no such file" in refusal(command)
