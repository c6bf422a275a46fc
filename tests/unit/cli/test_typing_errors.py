"""What is mistyped on the command line is refused in one line that suggests what was meant."""

from __future__ import annotations

import pytest

from dopsd.cli.main import main


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            "sumary",
            "dopsd: sumary: unknown command; did you mean summary? see `dopsd --help`",
        ),
        ("xyz", "dopsd: xyz: unknown command; see `dopsd --help`"),
        (
            "--verson",
            "dopsd: --verson: unknown option; did you mean --version? see `dopsd --help`",
        ),
        (  # before the option that is missing because of it
            "score --tsk gsm8k a.jsonl",
            "dopsd score: --tsk: unknown option; did you mean --task? see `dopsd score --help`",
        ),
        (
            "evaluate --protcol=published",
            "dopsd evaluate: --protcol: unknown option; did you mean --protocol?"
            " see `dopsd evaluate --help`",
        ),
        (
            "score --task gsm8k --scoring strct a.jsonl",
            "dopsd score: --scoring strct: unknown; there is published, strict;"
            " did you mean strict? see `dopsd score --help`",
        ),
        (
            "summary now",
            "dopsd summary: now: too many arguments; see `dopsd summary --help`",
        ),
        (
            "train --seed x",
            "dopsd train: argument --seed: expected a whole number from 0 to 9223372036854775807,"
            " found 'x'; see `dopsd train --help`",
        ),
    ],
)
def test_a_mistyped_word_is_one_line_that_suggests_the_right_one(words: str, line: str, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"{line} (D201)\n"


def test_values_that_look_like_options_are_values(capsys):
    assert main(["params", "--params", "none.yaml", "--set=--x"]) == 2
    assert "none.yaml: no such file" in capsys.readouterr().err


def test_words_for_dvc_are_left_to_dvc(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["repro", "--no-such-option", "--help"]) == 2
    assert "dvc.yaml: no such file" in capsys.readouterr().err
