"""The files that only resuming needs: in the two newest checkpoints, at a cost that stays equal."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dopsd.training import checkpoint

NAMES = ("adapter_model.safetensors", "batches.0.safetensors", "log.jsonl", "trainer.safetensors")


def save(scratch: Path, update: int) -> None:
    folder = scratch / f"step-{update:06d}"
    folder.mkdir()
    for name in NAMES:
        (folder / name).touch()


def resumable(scratch: Path) -> list[int]:
    return [int(p.parent.name[5:]) for p in sorted(scratch.glob("*/trainer.safetensors"))]


def test_a_save_looks_at_no_checkpoint_that_was_pruned_before(tmp_path, monkeypatch):
    listed: list[str] = []
    for name in ("listdir", "scandir"):
        listing = getattr(os, name)
        monkeypatch.setattr(os, name, lambda p, f=listing: [listed.append(str(p)), f(p)][1])
    for update in range(1, 31):
        save(tmp_path, update)
        checkpoint.prune(tmp_path, update)
    assert len([name for name in listed if "step-" in name]) < 2 * 30
    assert resumable(tmp_path) == [29, 30]
    assert len([*tmp_path.glob("*/adapter_model.safetensors")]) == 30


def test_what_a_killed_prune_left_goes_with_the_next_save(tmp_path, monkeypatch):
    for update in (1, 2, 3, 4):
        save(tmp_path, update)
    removed: list[Path] = []

    def unlink(path: Path) -> None:
        if removed:
            raise SystemExit(9)
        removed.append(path)
        path.rename(tmp_path / "gone")

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(Path, "unlink", unlink)
        checkpoint.prune(tmp_path, 4)
    save(tmp_path, 5)
    checkpoint.prune(tmp_path, 5)
    assert resumable(tmp_path) == [4, 5]
    assert not [*tmp_path.glob("step-00000[123]/[bl]*")]


def test_checkpoints_after_the_update_keep_their_files(tmp_path: Path):
    for update in (1, 2, 3, 4, 5):
        save(tmp_path, update)
    checkpoint.prune(tmp_path, 3)
    assert resumable(tmp_path) == [2, 3, 4, 5]
