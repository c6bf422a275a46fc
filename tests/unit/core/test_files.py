"""A link in the place of a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dopsd.core.files import link_copy

if TYPE_CHECKING:
    from pathlib import Path


def test_a_copy_becomes_a_link(tmp_path: Path):
    for name in ("file", "copy"):
        (tmp_path / name).write_text("text")
    for _ in range(2):
        link_copy(tmp_path / "file", tmp_path / "copy")
    link_copy(tmp_path / "none", tmp_path / "copy")
    assert (tmp_path / "copy").samefile(tmp_path / "file")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "file"]
