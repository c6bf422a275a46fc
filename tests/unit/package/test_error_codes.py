"""Every error that a user sees has a code, and a code never changes its number or its name."""

from __future__ import annotations

import ast
import hashlib
import pickle
from collections.abc import Iterator

import pytest
from conftest import ROOT

from dopsd.cli.main import main
from dopsd.core.errors import WIDEST, Code, DopsdError

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
    ("raised", "status", "end"),
    [
        (PermissionError(13, "Permission denied", "x"), 2, "and run the same command (D207)\n"),
        (OSError(28, "No space left on device", "x"), 75, "and run the same command (D705)\n"),
        (OSError(5, "Input/output error", "x"), 75, "and run the same command (D706)\n"),
        (KeyboardInterrupt(), 130, "the same command continues (D501)\n"),
    ],
)
def test_errors_of_the_system_have_codes(monkeypatch, capsys, raised, status: int, end: str):
    def fail(*_: object) -> int:
        raise raised

    monkeypatch.setattr("dopsd.cli.main.dispatch", fail)
    assert main(["check"]) == status
    assert capsys.readouterr().err.endswith(end)
