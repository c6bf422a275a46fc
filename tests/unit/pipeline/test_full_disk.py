"""A disk that fills while DVC copies results: it is named, and no part of a copy stays."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import forks
import pytest

pytestmark = pytest.mark.full

PART = ".xLRlpOJjHzFoUl9TL5l3-w.tmp"  # as DVC names a copy that is not finished
STAGE = """
import pathlib
pathlib.Path("runs").mkdir(exist_ok=True)
pathlib.Path("runs/one").write_bytes(bytes(3_000_000))
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A DVC workspace whose one stage has run: 3 MB in runs/ and in the cache."""
    made = tmp_path_factory.mktemp("made")
    (made / "stage.py").write_text(STAGE)
    stage = f"{{cmd: {sys.executable} stage.py, deps: [stage.py], outs: [runs/one]}}"
    (made / "dvc.yaml").write_text(f"stages:\n  one: {stage}\n")
    for words in (("init", "--no-scm", "-q"), ("repro", "-q")):
        subprocess.run([sys.executable, "-m", "dvc", *words], cwd=made, check=True)
    return made


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def repro(*words: str) -> tuple[int | None, str]:
    return forks.statuses([forks.start(forks.command, "repro", *words)])[0], forks.output()


@contextmanager
def disk(place: str, options: str) -> Iterator[None]:
    """A disk of its own at an empty folder."""
    shutil.rmtree(place)
    Path(place).mkdir()
    words = ["mount", "-t", "tmpfs", "-o", options, "none", place]
    if os.geteuid() or subprocess.run(words, capture_output=True).returncode:
        pytest.skip("needs to mount a disk")
    try:
        yield
    finally:
        subprocess.run(["umount", place], check=True)


FULL, READ_ONLY = "No space left on device", "Read-only file system"


@pytest.mark.parametrize(
    ("place", "options", "named"),
    [
        ("runs", "size=2m", f"{FULL}: runs; free some space"),
        ("runs", "size=2m,ro", f"{READ_ONLY}: runs; fix this"),
        (".dvc/cache", "size=2m", f"{FULL}: .dvc/cache/files/md5/c9; free some space"),
    ],
)
def test_a_disk_that_fails_is_named_and_keeps_no_part_of_a_copy(folder, place, options, named):
    with disk(place, options):
        for _ in range(2):
            status, said = repro(*["--force"] * (place != "runs"))
            assert status == 75, said
            assert "failed to reproduce 'one': [Errno" in said and "link types" not in said
            assert said.splitlines()[-1].startswith(f"dopsd: {named} and run the same command (D70")
            assert not [*Path("runs").rglob("*.tmp")]
            with suppress(OSError):  # the second time, no byte fits
                Path(place, "others").write_bytes(bytes(3_000_000))
    status, said = repro()
    assert status == 0 and Path("runs/one").stat().st_size == 3_000_000, said


def test_what_a_killed_copy_left_goes_with_the_next_command_and_nothing_else(folder):
    gone = [Path("runs", PART), Path(".dvc/cache/files/md5/c9", PART)]
    kept = [Path("runs/.notes.tmp"), Path("runs", PART[1:]), Path("notes", PART), Path("own", PART)]
    kept += [Path(".dvc/cache/runs", PART)]  # so young that another project's DVC may write it
    for path in [*gone, *kept]:
        path.parent.mkdir(exist_ok=True)
        path.touch()
    os.utime(gone[1], (1, 1))
    Path("runs", PART.replace("x", "y")).mkdir()
    status, said = repro()
    assert status == 0 and "didn't change, skipping" in said, said
    assert [path for path in gone if path.exists()] == []
    assert [path for path in kept if not path.exists()] == []
    assert Path("runs", PART.replace("x", "y")).is_dir()


@pytest.mark.parametrize(
    ("place", "named"),
    [("work", "work/writer.lock"), ("site", "site")],
)
def test_a_disk_on_which_no_lock_or_list_fits_is_named(folder, monkeypatch, place, named):
    monkeypatch.setenv("DVC_SITE_CACHE_DIR", "site")  # of DVC's lists of files
    Path(place).mkdir(exist_ok=True)
    with disk(place, "size=64k"):
        with suppress(OSError):
            Path(place, "others").write_bytes(bytes(100_000))
        status, said = repro()
    assert status == 75 and "Traceback" not in said, said
    assert said.splitlines()[-1].startswith(f"dopsd: {FULL}: {named}; free some space")
