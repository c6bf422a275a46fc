"""Every error has a code, which stays; the worked examples of docs/errors.md are true."""

import ast
import hashlib
import pickle
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT
from error_reference import examples

from dopsd.cli.explain import code_groups
from dopsd.cli.main import main
from dopsd.core.errors import WIDEST, Code, DopsdError

ANSWER = '{"question": "1 + 1?", "ground_truth": 2, "generation": "<answer>2</answer>"}\n'
FOLDER = "/home/me/project"  # the working directory, as the page shows it


def run(command: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run a line of the page: `dopsd` in this process, everything else in a shell."""
    words = shlex.split(command)
    with monkeypatch.context() as patch:
        while words and "=" in words[0]:
            patch.setenv(*words.pop(0).split("=", 1))
        if words[0] != "dopsd":
            return subprocess.run(["bash", "-c", command], check=False).returncode
        try:
            return main(words[1:])
        except SystemExit as end:  # of argparse
            return int(end.code or 0)


def last_line(capsys: pytest.CaptureFixture) -> str:
    out, err = capsys.readouterr()
    return (out + err).rstrip().split("\n")[-1].replace(str(Path.cwd()), FOLDER)


def is_long(code: str) -> bool:
    return any(command.startswith("dopsd train") for command in examples()[code]["fix"])


@pytest.mark.parametrize(
    "code",
    [pytest.param(c, marks=pytest.mark.full) if is_long(c) else c for c in examples()],
)
def test_an_example_prints_its_line_and_its_fix_works(code, project, monkeypatch, capsys):
    example = examples()[code]
    (project / "answers.jsonl").write_text(ANSWER)
    (project / "data/external").mkdir(exist_ok=True)
    for command in example.get("before", []):
        assert run(command, monkeypatch) == 0, command
    capsys.readouterr()
    assert run(example["run"], monkeypatch) == example.get("exit", 2)
    assert last_line(capsys) == example["prints"]
    assert example["prints"].endswith(f" ({code})")
    for command in example["fix"]:
        capsys.readouterr()
        assert run(command, monkeypatch) == 0, command
    if "then" in example:
        assert last_line(capsys) == example["then"]


def test_every_code_has_an_explanation_in_the_group_of_its_first_digit():
    assert len(examples()) >= 20  # of the most likely errors
    listed = [list(codes) for codes in code_groups().values()]
    assert [code for codes in listed for code in codes] == [code.value for code in Code]
    first_digits = [{code[:2] for code in codes} for codes in listed]
    assert first_digits == [{f"D{number}"} for number in range(1, 10)]
    for codes in code_groups().values():
        for code, texts in codes.items():
            assert texts.keys() == {"title", "cause", "fix"}, code
            assert texts["cause"].endswith(".") and texts["fix"].endswith("."), code


def test_explain_prints_an_entry_and_where_the_page_has_it(capsys):
    assert main(["explain", "(d103)"]) == 0
    entry = capsys.readouterr().out
    assert re.fullmatch(
        r"D103: Unknown key\n\nCause: .+\.\nFix: .+\.\n\nAll .+: docs/errors.md#d103\n", entry
    )
    assert main(["explain", "D999"]) == 2
    error = "dopsd: explain D999: no such code; `dopsd explain` lists all (D202)\n"
    assert capsys.readouterr().err == error


# Released codes: add lines, and never change one.
DIGEST = "85a64809e424ea2f"  # of all names and numbers
FOLDERS = ("dopsd", "flows", "docs", "benchmarks", "infra")


def trees() -> Iterator[tuple[str, ast.Module]]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield str(path.relative_to(ROOT)), ast.parse(path.read_text())


def test_numbers_and_names_of_codes_stay():
    """A new code changes the digest; no change of a published number or name is allowed."""
    listed = "".join(f"{code.name} {code.value}\n" for code in Code)
    assert hashlib.sha256(listed.encode()).hexdigest()[:16] == DIGEST


def test_every_error_has_a_code_and_every_code_an_error():
    without, used = [], set()
    for path, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("DopsdError"):
                if not any(keyword.arg == "code" for keyword in node.keywords):
                    without.append(f"{path}:{node.lineno}")
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "Code":
                used.add(node.attr)
    assert without == []
    assert {code.name for code in Code} == used


def test_the_code_is_at_the_end_of_the_first_of_all_readable_lines():
    error = DopsdError(["a", "b"], 75, code=Code.RUN_IN_USE)
    error = pickle.loads(pickle.dumps(error))  # as it reaches another process
    assert (str(error), error.exit_code, error.code) == ("a\nb", 75, Code.RUN_IN_USE)
    assert error.coded == f"a ({Code.RUN_IN_USE.value})\nb"
    assert DopsdError("a").coded == f"a ({Code.PLUGIN.value})"  # a plug-in's, without a code
    assert str(DopsdError("a\nb\x1b[2Jc\ud800", code=Code.PLUGIN)) == r"a\nb\x1b[2Jc\ud800"
    assert len(str(DopsdError("x" * 10**6, code=Code.PLUGIN))) < WIDEST + 10


@pytest.mark.parametrize(
    ("raised", "status", "code", "words"),
    [
        (PermissionError(13, "Permission denied", "x"), 2, "D207", "denied: x; "),
        (FileNotFoundError(2, "Not here"), 2, "D207", "Not here: the working directory, or"),
        (OSError(28, "No space left on device", "x"), 75, "D705", "device: x; "),
        (OSError(5, "Input error", "a", 0, "b"), 75, "D706", "Input error: a: b; "),
        (OSError("it is broken"), 75, "D706", "dopsd: it is broken; "),
        (KeyboardInterrupt(), 130, "D501", "interrupted; "),
    ],
)
def test_errors_of_the_system_have_codes(monkeypatch, capsys, raised, status, code, words):
    def fail(*_: object) -> int:
        raise raised

    monkeypatch.setattr("dopsd.cli.main.dispatch", fail)
    assert main(["check"]) == status
    said = capsys.readouterr().err
    assert words in said and "None" not in said
    assert "the same command" in said and said.endswith(f" ({code})\n")
