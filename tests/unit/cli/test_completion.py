"""`dopsd --help` and `dopsd COMMAND --help`; `dopsd --print-completion SHELL`, in a real bash."""

import argparse
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from dopsd.cli.main import build_parser, main
from dopsd.cli.parser import commands as listed_commands

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
