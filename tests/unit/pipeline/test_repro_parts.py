"""Into which commands of DVC `dopsd repro` is cut, and when it asks for room on the disk."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from conftest import ROOT, small_params, write_params

from dopsd.cli.main import main
from dopsd.config.profiles import embedded
from dopsd.pipeline import disk_model, dvc, dvc_outputs

PARTS = ["report@sudoku-d_opsd-0", "report@sudoku-d_opsd-1"]


class Ran:
    """What a command did, with two runs in the matrix."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, changed: bool = True) -> None:
        self.commands: list[list[str]] = []
        self.in_parts: list[bool] = []
        self.status, self.stops = 0, False
        monkeypatch.setattr(dvc.Writing, "_run_dvc", lambda *arguments: self._run(*arguments))
        monkeypatch.setattr(dvc.Writing, "_tidy", lambda *_: None)
        monkeypatch.setattr(dvc, "set_aside_damaged_results", lambda _: False)
        monkeypatch.setattr(dvc_outputs, "changed", lambda _: {"data"} if changed else set())
        monkeypatch.setattr(disk_model, "require_room", self._require)
        write_params(matrix__seeds=[0, 1])
        Path("dvc.yaml").touch()

    def _run(self, writing: dvc.Writing, _: object, words: list[str]) -> int:
        self.commands.append(words[1:])
        if self.stops:
            writing._lose()
        return self.status

    def _require(self, _: object, is_in_parts: bool) -> None:
        self.in_parts.append(is_in_parts)


@pytest.mark.parametrize("options", [[], ["--pull"], ["-q"]])
def test_each_run_is_a_part_so_that_its_copies_become_links_before_the_next(
    project: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
):
    ran = Ran(monkeypatch)
    assert dvc.run(["repro", *options]) == 0
    assert ran.commands == [[*options, PARTS[0]], [*options, PARTS[1]], options]
    assert ran.in_parts == [True]


@pytest.mark.parametrize("option", ["--keep-going", "--force", "-P"])
def test_an_option_that_means_the_whole_is_not_cut_and_needs_room_for_all_copies(
    project: Path, monkeypatch: pytest.MonkeyPatch, option: str
):
    ran = Ran(monkeypatch)
    dvc.run(["repro", option])
    assert ran.commands == [[option]] and ran.in_parts == [False]


@pytest.mark.parametrize("words", [["repro", "prepare"], ["repro", "--dry"], ["commit"]])
def test_what_does_not_run_the_matrix_needs_no_room(
    project: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
):
    ran = Ran(monkeypatch)
    dvc.run(words)
    assert ran.commands == [words[1:]] and ran.in_parts == []


def test_an_up_to_date_matrix_is_one_command(project: Path, monkeypatch: pytest.MonkeyPatch):
    ran = Ran(monkeypatch, changed=False)
    dvc.run(["repro"])
    assert ran.commands == [[]]


@pytest.mark.parametrize(("status", "stops"), [(3, False), (0, True)])
def test_a_part_that_fails_or_is_stopped_is_the_last(
    project: Path, monkeypatch: pytest.MonkeyPatch, status: int, stops: bool
):
    ran = Ran(monkeypatch)
    ran.status, ran.stops = status, stops
    assert dvc.run(["repro"]) == (status or 130)
    assert ran.commands == [[PARTS[0]]]


def test_a_method_that_joined_by_hand_gets_its_section(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    """DVC would stop, for its stages name the section as a parameter."""
    Ran(monkeypatch)
    raw = small_params(matrix__methods=["d_opsd", "rft"])
    del raw["method"]["rft"]
    Path("params.yaml").write_text(yaml.safe_dump(raw))
    Path("dvc.yaml").write_text((ROOT / "dvc.yaml").read_text())
    assert main(["check"]) == 0
    line = "params.yaml: no errors; `dopsd repro` and `dopsd params` add method.rft to it"
    assert capsys.readouterr().out.startswith(line)
    assert dvc.run(["repro"]) == 0
    assert "params.yaml: method.rft: added\n" in capsys.readouterr().err
    raw = yaml.safe_load(Path("params.yaml").read_text())
    assert raw["method"]["rft"] == embedded()["method"]["rft"]
    assert main(["check"]) == 0 and "add" not in capsys.readouterr().out
