"""`dopsd init my-project`: a project of one's own, beside an installed dopsd.

The files come from `template/`: links to those of this repository in git, copies in a wheel.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from dopsd.config.params_file import params
from dopsd.config.profiles import EMBEDDED, HARDWARE, PRESET
from dopsd.core.errors import DopsdError
from dopsd.core.extras import require
from dopsd.pipeline.code_entries import write_entries

TEMPLATE = Path(__file__).with_name("template")
# Names that git or DVC would take for settings of this repository, and what they become.
RENAMED = {
    "pipeline.yaml": "dvc.yaml",
    "pipeline.lock": "dvc.lock",
    "gitignore": ".gitignore",
    "dvcignore": ".dvcignore",
    "dvcconfig": ".dvc/config",
}


def create(folder: Path, profile: str | None = None) -> None:
    """Make a project in a new or empty folder: everything, or nothing where a part fails.

    Args:
        folder: the project; the folder that it lies in must exist.
        profile: whose settings params.yaml gets (default: embedded).

    Raises:
        DopsdError: if the folder is not empty, or git or DVC is missing or fails.
    """
    _refuse(folder)
    folder = folder.absolute()
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as tmp:
        project = Path(tmp) / "project"
        shutil.copytree(
            TEMPLATE,
            project,
            copy_function=shutil.copyfile,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        is_in_repository = _is_in_repository(folder)
        with contextlib.chdir(project):
            _fill(profile or EMBEDDED, is_in_repository)
        _move(project, folder)


def _refuse(folder: Path) -> None:
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise DopsdError(f"init: {folder}: exists and is not an empty folder; name a new one")
    if not folder.absolute().parent.is_dir():
        raise DopsdError(f"init: {folder.parent}: no such folder; make it first")
    if not shutil.which("git"):
        raise DopsdError("init: git is not installed; install git")
    require("init", "dvc")


def _is_in_repository(folder: Path) -> bool:
    """Whether a git repository takes the folder: it lies in one, and is not ignored there."""
    git = ("git", "-C", str(folder.parent))
    inside = subprocess.run([*git, "rev-parse", "--is-inside-work-tree"], capture_output=True)
    ignored = subprocess.run([*git, "check-ignore", "-q", str(folder)], capture_output=True)
    return inside.returncode == 0 and ignored.returncode != 0


def _fill(profile: str, is_in_repository: bool) -> None:
    """Complete the working directory, which holds the template's files."""
    if not is_in_repository:
        _run("git", "init", "--quiet")
    for name in ("gitignore", "dvcignore"):  # before DVC, which would write others
        Path(name).rename(RENAMED[name])
    subdir = ["--subdir"] if is_in_repository else []
    _run(sys.executable, "-m", "dvc", "init", "--quiet", *subdir)
    for name, target in RENAMED.items():
        if Path(name).exists():
            Path(name).replace(target)
    params(profile, PRESET, HARDWARE, [], Path("params.yaml"))
    write_entries()


def _run(*command: str) -> None:
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        words = " ".join(command).removeprefix(f"{sys.executable} -m ")
        lines = (process.stderr or process.stdout).strip().splitlines() or ["no message"]
        raise DopsdError(f"init: `{words}` failed: {lines[-1]}; nothing was written")


def _move(project: Path, folder: Path) -> None:
    """Put the whole project in its place; an empty folder may be somebody's working directory."""
    if not folder.exists():
        project.rename(folder)
        return
    for path in project.iterdir():
        path.rename(folder / path.name)
