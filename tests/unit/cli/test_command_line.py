"""Words of the command line: help, completion in a real bash, and what is refused in one line."""

import argparse
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import write_params
from ports import free_port

from dopsd.cli.main import build_parser, main
from dopsd.cli.parser import commands as listed_commands
from dopsd.cli.runs import _request
from dopsd.config.profiles import AS_IT_STANDS

COMPLETE = """
source completion.bash
for line in "$@"; do
    read -ra COMP_WORDS <<< "$line"
    [[ $line == *" " ]] && COMP_WORDS+=("")
    COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))
    COMP_LINE=$line COMP_POINT=${#line}
    _shtab_dopsd dopsd "${COMP_WORDS[-1]}"
    echo "${COMPREPLY[*]}"
done
"""


def script(shell: str, capsys: pytest.CaptureFixture) -> str:
    with pytest.raises(SystemExit, match="0"):
        main(["--print-completion", shell])
    return capsys.readouterr().out


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_options_values_and_files(tmp_path: Path, capsys):
    (tmp_path / "params_of_mine.yaml").touch()
    (tmp_path / "params_folder").mkdir()
    (tmp_path / "completion.bash").write_text(script("bash", capsys))
    wanted = {
        "dopsd sum": ["summary"],
        "dopsd --ver": ["--version"],
        "dopsd train --me": ["--method"],
        "dopsd train --method d_": ["d_opsd"],
        "dopsd score --scoring ": ["published", "strict"],
        "dopsd params --profile emb": ["embedded"],
        "dopsd check --params params_of": ["params_of_mine.yaml"],
        "dopsd export --adapter params_": ["params_folder"],
    }
    words = ["bash", "--norc", "-c", COMPLETE, "bash", "dopsd ", *wanted]
    ended = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    every, *offered = [sorted(shlex.split(line)) for line in ended.stdout.splitlines()]
    assert offered == [*wanted.values()]
    assert set(listed_commands()) <= set(every) and "follow" not in every


def test_other_shells_get_a_script_too(capsys):
    assert "#compdef dopsd" in script("zsh", capsys)
    assert "complete dopsd" in script("tcsh", capsys)


HIDDEN = {"follow"}  # training starts it


def commands() -> dict[str, argparse.ArgumentParser]:
    """Parsers by name and alias."""
    return next(a.choices for a in build_parser()._actions if isinstance(a.choices, dict))


def test_every_command_is_in_exactly_one_group_under_one_of_its_names():
    parsers = {name: parser for name, parser in commands().items() if name not in HIDDEN}
    listed = [parsers[name] for name in listed_commands()]
    missing = {parser.prog for parser in parsers.values()} - {parser.prog for parser in listed}
    assert not missing and len(listed) == len(set(listed))


def test_the_overview_fits_80_columns_and_lists_no_command_twice():
    lines = build_parser().format_help().splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith("  verify") for line in lines) == 1


def test_every_command_says_what_it_does_in_whole_sentences():
    for name, parser in commands().items():
        text = parser.description or ""
        assert name in HIDDEN or (text[0].isupper() and text.endswith(".")), name


def test_help_says_one_thing_a_line():
    for name, parser in {"dopsd": build_parser(), **commands()}.items():
        assert not re.search(r";|[a-z>`)]\. \S", parser.format_help()), name


def test_score_names_the_columns_that_it_reads_and_writes():
    text = commands()["score"].format_help()
    for column in ("question", "ground_truth", "generation", "accuracy %", "file, row, question"):
        assert column in text, column


def test_no_command_at_all_prints_the_overview(capsys):
    assert main([]) == 0
    assert capsys.readouterr().out == build_parser().format_help()


def test_every_option_has_a_help_text():
    for name, parser in commands().items():
        if name not in HIDDEN:
            silent = [a.dest for a in parser._actions if not a.help and a.dest != "words"]
            assert not silent and parser.format_help(), f"{name}: {silent}"


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


def test_flows_of_another_release_are_named(without_server):
    write_params()
    gone = "from dopsd.core.paths import GONE"
    for name, text in (("__init__", ""), ("runs", ""), ("watching", gone)):
        Path("flows").mkdir(exist_ok=True)
        Path("flows", f"{name}.py").write_text(text)
    command = [sys.executable, "-m", "dopsd", "cancel"]
    said = subprocess.run(command, capture_output=True, text=True)
    assert said.returncode == 2 and "flows/ is of another release (cannot import" in said.stderr
