"""`dopsd --print-completion SHELL`, in a real bash."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

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
    assert set(commands()) <= set(every) and "follow" not in every


def test_other_shells_get_a_script_too(capsys):
    assert "#compdef dopsd" in script("zsh", capsys)
    assert "complete dopsd" in script("tcsh", capsys)
