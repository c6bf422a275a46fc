"""Files: links in the place of copies, a full disk, files that may not be written, tensors."""

import errno
import os
from pathlib import Path

import pytest
import safetensors.torch
import torch

from dopsd.core.files import link_copy, rewrite, write_atomically
from dopsd.core.tensor_files import load_tensors, save_tensors


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
        path.write_bytes(b"n")
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


def test_only_tensors_that_share_memory_are_copied_before_they_are_written(tmp_path, monkeypatch):
    alone, row = torch.arange(3.0), torch.arange(8.0).view(2, 4)
    tensors = {"alone": alone, "again": alone, "half": row[0], "column": row[:, 1]}
    written = {}
    save = safetensors.torch.save_file
    monkeypatch.setattr(
        safetensors.torch,
        "save_file",
        lambda given, path, metadata: (written.update(given), save(given, path, metadata)),
    )
    save_tensors(tensors, tmp_path / "file")
    assert written["alone"].data_ptr() == alone.data_ptr() != written["again"].data_ptr()
    assert written["half"].data_ptr() != row.data_ptr()
    assert all(torch.equal(t, tensors[name]) for name, t in load_tensors(tmp_path / "file").items())
