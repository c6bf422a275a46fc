"""`dopsd --print-completion SHELL`, in a real bash."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

from dopsd.cli.main import main
from dopsd.cli.parser import commands

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


@pytest.fixture(scope="module")
def script() -> str:
    words = [sys.executable, "-m", "dopsd", "--print-completion", "bash"]
    return subprocess.run(
        words,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def completed(script: str, folder: Path, *lines: str) -> list[list[str]]:
    """What a real bash offers at the end of each line, sorted."""
    (folder / "completion.bash").write_text(script)
    ended = subprocess.run(
        ["bash", "--norc", "-c", COMPLETE, "bash", *lines],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return [sorted(shlex.split(line)) for line in ended.stdout.splitlines()]


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_options_values_and_files(script: str, tmp_path: Path):
    (tmp_path / "params_of_mine.yaml").touch()
    (tmp_path / "params_folder").mkdir()
    offered = completed(
        script,
        tmp_path,
        "dopsd sum",
        "dopsd --ver",
        "dopsd train --me",
        "dopsd train --method d_",
        "dopsd score --scoring ",
        "dopsd params --profile emb",
        "dopsd check --params params_of",
        "dopsd export --adapter params_",
    )
    assert offered == [
        ["summary"],
        ["--version"],
        ["--method"],
        ["d_opsd"],
        ["published", "strict"],
        ["embedded"],
        ["params_of_mine.yaml"],
        ["params_folder"],
    ]


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_offers_every_command_and_no_hidden_one(script: str, tmp_path: Path):
    (offered,) = completed(script, tmp_path, "dopsd ")
    assert set(commands()) <= set(offered) and "follow" not in offered


@pytest.mark.parametrize(("shell", "mark"), [("zsh", "#compdef dopsd"), ("tcsh", "complete dopsd")])
def test_other_shells_get_a_script_too(shell: str, mark: str, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--print-completion", shell])
    assert ended.value.code == 0
    assert mark in capsys.readouterr().out
