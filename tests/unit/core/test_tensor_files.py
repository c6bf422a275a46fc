"""Tensors on their way to a file."""

import safetensors.torch
import torch

from dopsd.core.tensor_files import load_tensors, save_tensors


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
