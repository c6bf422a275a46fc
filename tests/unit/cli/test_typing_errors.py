"""What is mistyped on the command line is refused in one line that suggests what was meant."""

from __future__ import annotations

import re

import pytest

from dopsd.cli.main import main


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


def test_values_that_look_like_options_are_values(capsys):
    assert main(["params", "--params", "none.yaml", "--set=--x"]) == 2
    assert "none.yaml: no such file" in capsys.readouterr().err


def test_words_for_dvc_are_left_to_dvc(here, capsys):
    assert main(["repro", "--no-such-option", "--help"]) == 2
    assert "dvc.yaml: no such file" in capsys.readouterr().err
