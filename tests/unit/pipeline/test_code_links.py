"""The links in code/, on which DVC depends, are made right; what is no link is left alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dopsd.core.errors import DopsdError
from dopsd.pipeline.code_links import link_code


@pytest.fixture(autouse=True)
def empty_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_missing_links_are_made_wrong_ones_corrected_and_dead_ones_removed():
    Path("code/algorithms").mkdir(parents=True)
    Path("code/core").symlink_to("elsewhere")
    Path("code/algorithms/gone").symlink_to("nowhere")
    link_code()
    assert Path("code/core/errors.py").is_file() and Path("code/algorithms/rft/config.py").is_file()
    assert not os.path.lexists("code/algorithms/gone")


def test_a_folder_in_the_place_of_a_link_is_named_and_left_alone():
    Path("code/core").mkdir(parents=True)
    Path("code/core/mine.py").touch()
    with pytest.raises(DopsdError, match=r"code/core: .*remove it") as raised:
        link_code()
    assert raised.value.exit_code == 2
    assert [path.name for path in Path("code").rglob("*")] == ["core", "mine.py"]
