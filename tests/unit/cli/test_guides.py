"""The guides show what commands really print: an estimate, and messages of the code."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from conftest import ROOT

from dopsd.cli.main import main

SHORTEST = 25  # characters that a message must share with the code to be found in it


def blocks(page: str) -> list[str]:
    return re.findall(r"```text\n(.*?)\n```", (ROOT / "docs" / page).read_text(), re.DOTALL)


@pytest.mark.parametrize(
    ("page", "profile", "hardware"),
    [
        ("first-gpu-run.md", "llada-8b-gsm8k", "1x80gb"),
        ("bases.md", "tide-0.6b-gsm8k", "1x16gb"),
    ],
)
def test_the_estimate_of_a_guide_is_the_one_that_is_printed(
    page: str, profile: str, hardware: str, here: Path, capsys: pytest.CaptureFixture
):
    assert main(["estimate", "--profile", profile, "--hardware", hardware]) == 0
    assert capsys.readouterr().out.rstrip() == blocks(page)[0]


def test_the_small_base_has_no_estimate(refusal):
    said = refusal("estimate", "--profile", "embedded")
    assert "name settings of a language model, such as --profile llada-8b" in said


def pattern(node: ast.AST) -> str:
    """A regular expression of the texts that a string of the code may become."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.escape(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(pattern(part) for part in node.values)
    return ".*"


@cache
def patterns() -> list[re.Pattern[str]]:
    strings = [
        pattern(node)
        for path in (ROOT / "dopsd").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.Constant, ast.JoinedStr))
    ]
    return [re.compile(text) for text in strings if len(text.replace(".*", "")) >= SHORTEST]


def covered(line: str) -> int:
    """Characters of the line within the longest message of the code that it contains."""
    return max((len(m[0]) for p in patterns() if (m := p.search(line))), default=0)


MESSAGES = [line for block in blocks("troubleshooting.md") for line in block.splitlines()]


PREFECT = ("httpx.ConnectError: All connection attempts failed", "An exception occurred.")


@pytest.mark.parametrize("line", [line for line in MESSAGES if line not in PREFECT])
def test_a_message_of_the_troubleshooting_page_is_one_of_the_code(line: str):
    message = re.sub(r"^dopsd: | \(D\d\d\d\)$", "", line)
    assert covered(message) > 0.6 * len(message), f"the code prints no such line: {line}"
