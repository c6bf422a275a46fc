"""Files: links in the place of copies, a full disk, and files that may not be written."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from dopsd.core.files import link_copy, rewrite, write_atomically


def test_a_copy_becomes_a_link(tmp_path: Path):
    for name in ("file", "copy"):
        (tmp_path / name).write_text("text")
    for _ in range(2):
        link_copy(tmp_path / "file", tmp_path / "copy")
    link_copy(tmp_path / "none", tmp_path / "copy")
    assert (tmp_path / "copy").samefile(tmp_path / "file")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "file"]


def test_a_full_disk_is_told_with_the_file_and_leaves_no_part_of_it(tmp_path: Path, monkeypatch):
    (tmp_path / "file").write_text("whole")

    def cut(path: Path, *_: object, **__: object) -> None:
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", cut)
    with pytest.raises(OSError, match=f"'{tmp_path / 'file'}'"):
        write_atomically(tmp_path / "file", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "whole"


def test_a_file_that_may_not_be_written_is_not_replaced(tmp_path: Path, monkeypatch):
    (tmp_path / "file").write_text("whole")
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write all files
    with pytest.raises(PermissionError, match="file"):
        rewrite(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_text() == "whole"
