"""docs/verification.yaml: its commands and tests exist, and its figures stand in their source."""

from __future__ import annotations

import re
import sys

import pytest
from conftest import ROOT

from dopsd.cli.main import build_parser

sys.path.insert(0, str(ROOT / "docs"))

from verification_page import read

CHECKS = read()["verified"]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("check", CHECKS, ids=[check["what"][:40] for check in CHECKS])
def test_a_check_names_what_is_there(check):
    assert check.keys() >= {"what", "against", "command", "when", "not", "tests"}
    assert check["tests"] and all((ROOT / test).is_file() for test in check["tests"])
    tool, name, *rest = check["command"].split()
    if tool == "make":
        assert name in TARGETS
    elif tool == "dopsd":
        assert name in build_parser().format_help().split()
    else:
        paths = [word for word in (name, *rest) if "/" in word]
        assert tool == "python" and paths and all((ROOT / path).exists() for path in paths)
    text = (ROOT / check["source"]).read_text() if "source" in check else ""
    assert [figure for figure in check.get("figures", []) if figure not in text] == []
