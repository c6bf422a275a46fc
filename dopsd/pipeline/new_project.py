"""`dopsd init my-project`: a project of your own for an installed dopsd.

The files come from `template/`: links to those of this repository in git, copies in a wheel.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from dopsd.config.params_file import params
from dopsd.config.profiles import AS_IT_STANDS, EMBEDDED, HARDWARE, PRESET
from dopsd.core.errors import Code
from dopsd.core.extras import require
from dopsd.pipeline.recipes import write_recipes

TEMPLATE = Path(__file__).with_name("template")
# Names that git or DVC would take for settings of this repository, and what they become.
RENAMED = {
    "pipeline.yaml": "dvc.yaml",
    "pipeline.lock": "dvc.lock",
    "gitattributes": ".gitattributes",
    "gitignore": ".gitignore",
    "dvcignore": ".dvcignore",
    "dvcconfig": ".dvc/config",
}


def create(
    folder: Path, profile: str | None = None, preset: str = PRESET, hardware: str = HARDWARE
) -> None:
    """Make a project in a new or empty folder: everything, or nothing where a part fails.

    Args:
        folder: the project; the folder that it lies in must exist.
        profile: whose settings params.yaml gets (default: embedded).

    Raises:
        DopsdError: if the folder is not empty, or git or DVC is missing or fails.
    """
    _refuse(folder)
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        del os.environ[name]  # another repository than that of the folder
    folder = folder.absolute()
    with tempfile.TemporaryDirectory(prefix=f"{folder.name[:50]}.", dir=folder.parent) as tmp:
        project = Path(tmp) / "project"
        shutil.copytree(
            TEMPLATE,
            project,
            copy_function=shutil.copyfile,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        os.umask(umask := os.umask(0))
        for path in (project, *project.rglob("*")):  # copytree copied the modes of the package's
            if path.is_dir():
                path.chmod(0o777 & ~umask)
        is_in_repository = _is_in_repository(folder)
        with contextlib.chdir(project):
            _fill((profile or EMBEDDED, preset, hardware), is_in_repository)
        _move(project, folder)


def _refuse(folder: Path) -> None:
    is_empty = folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir())
    if os.path.lexists(folder) and not is_empty:
        fault = "is a link" if folder.is_symlink() else "exists and is not an empty folder"
        raise Code.OUTPUT_EXISTS.error(f"init: {folder}: {fault}; name a new one")
    if not folder.absolute().parent.is_dir():
        raise Code.PATH.error(f"init: {folder.parent}: no such folder; make it first")
    if not shutil.which("git"):
        raise Code.GIT.error("init: git is not installed; install git")
    require("init", "dvc")


def _is_in_repository(folder: Path) -> bool:
    """Whether a git repository tracks the folder: it lies in one, and is not ignored there."""
    git = ("git", "-C", str(folder.parent))
    inside = _process(*git, "rev-parse", "--is-inside-work-tree")
    if "dubious ownership" in inside.stderr:
        raise Code.GIT.error(
            f"init: {inside.stderr.strip().splitlines()[0]}; see git's safe.directory"
        )
    ignored = _process(*git, "check-ignore", "-q", str(folder))
    return inside.returncode == 0 and ignored.returncode != 0


def _process(*command: str) -> subprocess.CompletedProcess[str]:
    """Run git or DVC on the folder that is named, whatever repository the environment names."""
    outer = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")
    env = {name: value for name, value in os.environ.items() if name not in outer}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env=env, encoding="utf-8"
    )


def _fill(profile: tuple[str, str, str], is_in_repository: bool) -> None:
    """Complete the working directory, which holds the template's files."""
    _run("git", "init", "--quiet")  # DVC stages its files, under their present names
    for name in ("gitignore", "dvcignore"):  # before DVC, which would write others
        Path(name).rename(RENAMED[name])
    _run(sys.executable, "-m", "dvc", "init")
    if is_in_repository:
        shutil.rmtree(".git")
    for name, target in RENAMED.items():
        if Path(name).exists():
            Path(name).replace(target)
    params(*profile, [], Path("params.yaml"))
    _keep_settings(Path("prefect.yaml"))
    write_recipes()


def _keep_settings(deployments: Path) -> None:
    """Let runs of a project take its params.yaml by default; a profile would replace the file."""
    text = deployments.read_text(encoding="utf-8")
    for entrypoint in ("train", "compare"):
        line = f"    entrypoint: flows/{entrypoint}.py:{entrypoint}\n"
        text = text.replace(line, f'{line}    parameters: {{profile: "{AS_IT_STANDS}"}}\n')
    deployments.write_text(text, encoding="utf-8")


def _run(*command: str) -> None:
    process = _process(*command)
    if process.returncode:
        words = " ".join(command).removeprefix(f"{sys.executable} -m ")
        lines = (process.stderr or process.stdout).strip().splitlines() or ["no message"]
        raise Code.GIT.error(f"init: `{words}` failed: {lines[-1]}; nothing was written")


def _move(project: Path, folder: Path) -> None:
    """Move the project to its folder; an empty folder stays, as it may be a working directory."""
    if not folder.exists():
        project.rename(folder)
        return
    for path in project.iterdir():
        path.rename(folder / path.name)
