"""Links between copies: who gets one, and who may write to it then."""

from __future__ import annotations

from pathlib import Path

from dopsd.core.files import LARGE, one_file


def test_large_copies_become_one_read_only_file_and_others_stay(tmp_path: Path):
    contents = {"large": b"a" * LARGE, "same": b"a" * LARGE, "other": b"b" * LARGE, "small": b"a"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        (tmp_path / name).chmod(0o644)
    for name in ("same", "other", "small"):
        one_file(tmp_path / "large", tmp_path / name)
        one_file(tmp_path / "small", tmp_path / name)
    files = {name: (tmp_path / name).stat() for name in contents}
    assert files["same"].st_ino == files["large"].st_ino
    assert {name: status.st_nlink for name, status in files.items()} == {
        "large": 2,
        "same": 2,
        "other": 1,
        "small": 1,
    }
    assert {name: oct(status.st_mode & 0o777) for name, status in files.items()} == {
        "large": "0o444",
        "same": "0o444",
        "other": "0o644",
        "small": "0o644",
    }
