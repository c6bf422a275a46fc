"""Every error that a user sees has a code, and a code never changes its number or its name."""

from __future__ import annotations

import ast
import pickle
from collections.abc import Iterator

import pytest
from conftest import ROOT

from dopsd.cli.main import main
from dopsd.core.errors import Code, DopsdError

# Released codes: add lines, and never change one.
NUMBERS = {
    "NO_SETTINGS_FILE": "D101",
    "NOT_YAML": "D102",
    "UNKNOWN_KEY": "D103",
    "WRONG_VALUE": "D104",
    "CONTRADICTION": "D105",
    "NAMED_FILE_MISSING": "D106",
    "PROFILE": "D107",
    "CHANGE": "D108",
    "MISFIT": "D109",
    "VARIABLE": "D110",
    "USAGE": "D201",
    "UNKNOWN_NAME": "D202",
    "ARGUMENT": "D203",
    "OPTIONS": "D204",
    "OUTPUT_EXISTS": "D205",
    "NOT_A_PROJECT": "D206",
    "PATH": "D207",
    "SOURCE_MISSING": "D301",
    "SOURCE_FORMAT": "D302",
    "SOURCE_ROW": "D303",
    "HUB": "D304",
    "TOO_FEW_PROBLEMS": "D305",
    "NOT_PREPARED": "D306",
    "PREPARED_DAMAGED": "D307",
    "NO_SOLUTIONS": "D308",
    "PROMPT_FILE": "D309",
    "PROBLEM_TEXT": "D310",
    "VERIFIER_PROGRAM": "D311",
    "NOT_TRAINABLE": "D312",
    "NO_MODEL": "D401",
    "MODEL_CONFIG": "D402",
    "UNSUPPORTED_MODEL": "D403",
    "WEIGHTS": "D404",
    "TOKENIZER": "D405",
    "NO_ADAPTER": "D406",
    "ADAPTER_DAMAGED": "D407",
    "ADAPTER_MISFIT": "D408",
    "ADAPTER_KIND": "D409",
    "LORA_TARGETS": "D410",
    "MERGING": "D411",
    "BASE_DIFFERS": "D412",
    "NO_TRAINABLE": "D413",
    "INTERRUPTED": "D501",
    "OTHER_CODE": "D502",
    "RUN_IN_USE": "D505",
    "RESUME": "D506",
    "NOT_FINITE": "D507",
    "OUT_OF_MEMORY": "D508",
    "NOTHING_TO_LEARN": "D509",
    "CHECKPOINTS_DIFFER": "D510",
    "CHANGED_DURING_STAGE": "D511",
    "STAGE_FAILED": "D512",
    "STAGE_MISSING": "D513",
    "PROCESS_LOST": "D514",
    "NO_RESULTS": "D601",
    "RESULT_DAMAGED": "D602",
    "GENERATIONS_FILE": "D603",
    "GENERATIONS_ROW": "D604",
    "NOT_COMPARABLE": "D605",
    "PACKAGE_MISSING": "D701",
    "NO_GPU": "D702",
    "COMPILER": "D703",
    "PROCESSES": "D704",
    "DISK_FULL": "D705",
    "TEMPORARY": "D706",
    "NOT_READY": "D707",
    "GIT": "D708",
    "TRACKING_OFF": "D801",
    "TRACKING_SERVER": "D802",
    "PLUGIN_BROKEN": "D803",
    "PLUGIN": "D804",
    "PLUGIN_PAGE": "D805",
    "PUSH_REFUSED": "D806",
    "SERVED_DIFFERS": "D807",
    "TRACKING_REFUSED": "D808",
    "RUN_SERVER": "D901",
    "NO_DEPLOYMENT": "D902",
    "NO_RUN": "D903",
    "RUN_FAILED": "D904",
    "RUN_LEFT": "D905",
    "RUN_CANCELLED": "D906",
}
FOLDERS = ("dopsd", "flows", "docs", "benchmarks", "infra")


def trees() -> Iterator[tuple[str, ast.Module]]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield str(path.relative_to(ROOT)), ast.parse(path.read_text())


def test_numbers_and_names_of_codes_stay():
    assert {code.name: code.value for code in Code} == NUMBERS


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


def test_the_code_is_at_the_end_of_the_first_line_and_not_in_the_message():
    error = DopsdError(["a: no such file", "b: no such file"], code=Code.NAMED_FILE_MISSING)
    assert str(error) == "a: no such file\nb: no such file"
    assert error.coded == "a: no such file (D106)\nb: no such file"


def test_an_error_of_a_plugin_without_a_code_has_that_of_plugins():
    assert DopsdError("chess: no board").coded == f"chess: no board ({Code.PLUGIN.value})"


def test_an_error_of_several_lines_reaches_another_process_whole():
    error = pickle.loads(pickle.dumps(DopsdError(["a", "b"], 75, code=Code.RUN_IN_USE)))
    assert (str(error), error.exit_code, error.code) == ("a\nb", 75, Code.RUN_IN_USE)


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


def test_a_usage_error_has_a_code(capsys):
    with pytest.raises(SystemExit):
        main(["check", "--bogus"])
    assert capsys.readouterr().err.endswith(
        "--bogus: unknown option; see `dopsd check --help` (D201)\n"
    )
