"""`dopsd --help` and `dopsd COMMAND --help`."""

from __future__ import annotations

import argparse
import re

from dopsd.cli.main import build_parser, main
from dopsd.cli.parser import commands as listed_commands

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
